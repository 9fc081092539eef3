"use strict";
// What every page has. Everything that is shown is text content, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const GLYPHS = { exact: "✓", explained: "≈", unexplained: "✗", unsupported: "✗", incomplete: "?" };

function el(tag, attributes, ...inside) {
  const made = tag === "svg" || tag === "rect" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.flat(Infinity).filter((x) => x !== null && x !== undefined && x !== ""));
  return made;
}

const button = (title, act) => el("button", { type: "button", onclick: (e) => act(e.currentTarget) }, title);

// Light and dark -----------------------------------------------------------------------------------------------------
const root = document.documentElement, theme = $("theme");
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const named = () => { theme.textContent = dark() ? "Light" : "Dark"; };
try { const kept = localStorage.getItem("costproof-theme"); if (kept) root.dataset.theme = kept; } catch { /* not kept */ }
theme.hidden = false;
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("costproof-theme", root.dataset.theme); } catch { /* not kept */ }
  named();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
named();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));

// The metric of choice ----------------------------------------------------------------------------------------------
const chips = document.querySelector(".chips"), tables = document.querySelectorAll(".metric");
let chosen = () => {};  // what else follows it
const metric = (name) => { tables.forEach((t) => { t.hidden = t.dataset.metric !== name; }); chosen(name); };
if (chips) {
  chips.hidden = false;
  chips.addEventListener("change", (event) => metric(event.target.value));
  if (!data.rows) metric(data.first);
}
// A picture, which fits its frame until it is zoomed -----------------------------------------------------------------
const picture = document.querySelector(".graph svg");
if (picture) {
  const [width, height] = ["width", "height"].map((side) => Number(picture.getAttribute(side)));
  let scale = 1;
  const zoom = (to) => { scale = Math.max(.15, Math.min(3, to)); picture.style.width = `${width * scale}px`; picture.style.height = `${height * scale}px`; };
  const fit = () => zoom(Math.min(1, (picture.parentElement.clientWidth - 2) / width));
  const smaller = button("−", () => zoom(scale / 1.3)), larger = button("+", () => zoom(scale * 1.3));
  smaller.setAttribute("aria-label", "Zoom out");
  larger.setAttribute("aria-label", "Zoom in");
  $("zoom").append(button("Fit", fit), button("1:1", () => zoom(1)), smaller, larger);
  queueMicrotask(fit);  // once all else stands, so that the page is laid out once
}

// What all tables share: exact integers of any size, copies ----------------------------------------------------------
const exact = (v) => v === null ? "?" : String(v).replace(/\B(?=(\d{3})+$)/g, ",");
const many = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
const csv = (lines) => lines.map((line) => line.map((c) => `"${(/^[=+\-@\t\r]/.test(c) && !/^-\d+$/.test(c) ? "'" + c : c).replace(/"/g, '""')}"`).join(",")).join("\n") + "\n";
const markdown = ([head, ...body], align) => [head, [...align].map((a) => a === "r" ? "---:" : "---"), ...body].map((line, i) => `| ${line.map((c) => i === 1 ? c : c.replace(/[\\|<>`*_[\]]/g, "\\$&")).join(" | ")} |`).join("\n") + "\n";
async function copy(text, button) {
  const title = button.textContent;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = title; }, 1500);
}
const copies = (cells, align) => [button("Copy Markdown", (b) => copy(markdown(cells(), align), b)), button("Copy CSV", (b) => copy(csv(cells()), b))];
const options = (words) => words.map((s) => el("option", { value: s }, s || "any status"));

// Tables that are in the file whole: searched, filtered, sorted. An item is a tbody: a row, and what belongs to it ----
const plain = (cell) => (cell.querySelector("data")?.value ?? cell.textContent).trim();
const number = (cell) => { const said = plain(cell).replace(/[,+]/g, ""); return /^-?\d+$/.test(said) ? BigInt(said) : null; };
document.querySelectorAll(".sift").forEach((part) => {
  const table = part.querySelector("table"), items = [...table.tBodies], heads = [...table.tHead.rows[0].cells], said = part.querySelector(".said");
  const texts = new Map(items.map((item) => [item, item.textContent.toLowerCase()]));
  const search = el("input", { type: "search", "aria-label": `Filter ${part.dataset.name}s`, placeholder: "Filter" });
  const statuses = [...new Set(items.map((item) => item.dataset.status))].filter(Boolean).sort();
  const pick = el("select", { "aria-label": "Status" }, options(["", ...statuses]));
  let sort = null, down = false;
  const compared = (a, b) => {
    const [x, y] = [a, b].map((item) => item.rows[0].cells[sort]);
    const [m, n] = [number(x), number(y)];
    if (m === null || n === null) return m === n ? plain(x).localeCompare(plain(y), "en", { numeric: true }) * (down ? -1 : 1) : m === null ? 1 : -1;
    return (m < n ? -1 : m > n ? 1 : 0) * (down ? -1 : 1);
  };
  const shown = () => items.filter((item) => !item.hidden);
  const filter = () => {
    const words = search.value.trim().toLowerCase().split(/\s+/);
    items.forEach((item) => { item.hidden = !words.every((w) => texts.get(item).includes(w)) || (pick.value !== "" && item.dataset.status !== pick.value); });
    said.textContent = `${exact(shown().length)} of ${many(items.length, part.dataset.name)} shown. ${said.dataset.more}`;
  };
  heads.forEach((head, i) => {
    const title = head.textContent;
    head.replaceChildren(button(title, () => {
      const first = head.classList.contains("n");
      if (sort !== i) { sort = i; down = first; } else if (down === first) down = !first; else sort = null;
      table.append(...(sort === null ? items : [...items].sort(compared)));
      heads.forEach((other, j) => { if (j === sort) other.setAttribute("aria-sort", down ? "descending" : "ascending"); else other.removeAttribute("aria-sort"); });
    }));
  });
  const cells = () => [heads.map((c) => c.textContent), ...[...table.tBodies].filter((item) => !item.hidden).map((item) => [...item.rows[0].cells].map((c) => String(number(c) ?? plain(c))))];
  search.addEventListener("input", filter);
  pick.addEventListener("change", filter);
  part.querySelector(".tools").prepend(search, ...(statuses.length > 1 ? [pick] : []), ...copies(cells, heads.map((c) => c.classList.contains("n") ? "r" : "l")));
  filter();
});
