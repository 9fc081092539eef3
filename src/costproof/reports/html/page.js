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
const named = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `${theme.textContent} colours`); };
try { const kept = localStorage.getItem("costproof-theme"); if (kept) root.dataset.theme = kept; } catch { /* not kept */ }
theme.hidden = false;
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("costproof-theme", root.dataset.theme); } catch { /* not kept */ }
  named();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
named();

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
async function copy(text, pressed) {
  pressed.dataset.title ??= pressed.textContent;  // pressed again, it says "Copied" still
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = pressed.dataset.title; }, 1500);
}
const copies = (cells, align) => [button("Copy Markdown", (b) => copy(markdown(cells(), align), b)), button("Copy CSV", (b) => copy(csv(cells()), b))];
const options = (words) => words.map((s) => el("option", { value: s }, s || "any status"));

// Tables that are in the file whole: searched, filtered, sorted, a part of them in the document at a time. An item is a
// tbody: a row, and what belongs to it -------------------------------------------------------------------------------
const plain = (cell) => (cell.querySelector("data")?.value ?? cell.textContent).trim();
const number = (cell) => { const said = plain(cell).replace(/[,+]/g, ""); return /^-?\d+$/.test(said) ? BigInt(said) : null; };
const compared = (x, y, way) => {  // words go last either way
  const [m, n] = [number(x), number(y)];
  if (m !== null && n !== null) return (m < n ? -1 : m > n ? 1 : 0) * way;
  return m === n ? plain(x).localeCompare(plain(y), "en", { numeric: true }) * way : m === null ? 1 : -1;
};
document.querySelectorAll(".sift").forEach((part) => {
  const table = part.querySelector("table"), heads = [...table.tHead.rows[0].cells], said = part.querySelector(".said");
  const items = [...table.tBodies, ...(part.querySelector("template")?.content.children ?? [])], step = Number(part.dataset.step);
  const texts = new Map(items.map((item) => [item, item.textContent.toLowerCase()]));
  const search = el("input", { type: "search", "aria-label": `Filter ${part.dataset.name}s`, placeholder: "Filter" });
  const statuses = [...new Set(items.map((item) => item.dataset.status))].filter(Boolean).sort();
  const pick = el("select", { "aria-label": "Status" }, options(["", ...statuses]));
  let order = items, sort = null, down = false, found = items, most = step, before = step;
  const filter = () => {
    const words = search.value.trim().toLowerCase().split(/\s+/);
    found = order.filter((item) => words.every((w) => texts.get(item).includes(w)) && (pick.value === "" || item.dataset.status === pick.value));
    draw();
  };
  const draw = () => {
    const shown = found.slice(0, most), hidden = found.length - shown.length;
    table.replaceChildren(table.tHead, ...shown);
    further.hidden = hidden === 0;
    said.textContent = `${exact(shown.length)} of ${many(items.length, part.dataset.name)} shown${hidden ? `; ${exact(hidden)} more match` : ""}. ${said.dataset.more}`;
  };
  const further = button(`Show ${step} more`, () => { most += step; draw(); });
  heads.forEach((head, i) => {
    const title = head.textContent;
    head.replaceChildren(button(title, () => {
      const first = head.classList.contains("n");
      if (sort !== i) { sort = i; down = first; } else if (down === first) down = !first; else sort = null;
      const way = down ? -1 : 1, cell = (item) => item.rows[0].cells[sort];
      order = sort === null ? items : [...items].sort((a, b) => compared(cell(a), cell(b), way));
      heads.forEach((other, j) => { if (j === sort) other.setAttribute("aria-sort", down ? "descending" : "ascending"); else other.removeAttribute("aria-sort"); });
      filter();
    }));
  });
  const cells = () => [heads.map((c) => c.textContent), ...found.map((item) => [...item.rows[0].cells].map((c) => String(number(c) ?? plain(c))))];
  search.addEventListener("input", filter);
  pick.addEventListener("change", filter);
  addEventListener("beforeprint", () => { before = most; most = Infinity; draw(); });
  addEventListener("afterprint", () => { most = before; draw(); });
  part.querySelector(".tools").prepend(search, ...(statuses.length > 1 ? [pick] : []), ...copies(cells, heads.map((c) => c.classList.contains("n") ? "r" : "l")));
  part.append(further);
  filter();
});

// On paper everything is open; the tables above have put all their rows in by then.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
