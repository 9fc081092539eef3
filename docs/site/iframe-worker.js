// Browsers start no worker for a page that is opened as a file, and the search of the theme runs in one. Here its
// script runs in a hidden frame instead. Where a server hands the pages out, workers stay what they are.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.host = this;
      this.frame.addEventListener("load", () => this.begin(new URL(url, document.baseURI).href), { once: true });
      (document.body || document.documentElement).append(this.frame);
    }

    async begin(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const load = (address) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, url);
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.append(script);
      });
      inside.importScripts = async (...addresses) => {
        for (const address of addresses) await load(address);
      };
      await load(url);
      const waiting = this.waiting;
      this.waiting = null;
      waiting.forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
