// The tree of modules and what it leads to.
(() => {
  const MOST = 1000;  // rows in the document at a time
  const SCREEN = 40;  // of them, those that are put in at once: what is seen
  // Numbers: exact integers of any size --------------------------------------------------------------------------------
  const SCALES = [[10n ** 18n, "E"], [10n ** 15n, "P"], [10n ** 12n, "T"], [10n ** 9n, "G"], [10n ** 6n, "M"], [1000n, "k"]];
  function human(v, unit) {
    if (v === null) return "?";
    const value = BigInt(v), size = value < 0n ? -value : value, sign = value < 0n ? "-" : "";
    let rank = SCALES.findIndex(([scale]) => size >= scale);
    if (rank < 0) return `${sign}${size} ${unit}`.trim();
    const scaled = (r) => (2n * size * 100n + SCALES[r][0]) / (2n * SCALES[r][0]);
    if (rank > 0 && scaled(rank) >= 100000n) rank -= 1;
    const digits = scaled(rank);
    return `${sign}${digits / 100n}.${String(digits % 100n).padStart(2, "0")} ${SCALES[rank][1]}${unit}`;
  }
  function share(part, whole) {  // as in numbers.py: half up, never 0.0 % of something or 100.0 % of less than all
    const tenths = (2000n * part + whole) / (2n * whole);
    if (tenths === 0n && part !== 0n) return "below 0.1 %";
    if (tenths === 1000n && part !== whole) return part < whole ? "over 99.9 %" : "over 100.0 %";
    return `${exact(tenths / 10n)}.${tenths % 10n} %`;
  }
  const first = (v) => v !== null && typeof v === "object" ? Object.values(v)[0] : v;
  const differs = (v) => v !== null && typeof v === "object";

  // Rows ---------------------------------------------------------------------------------------------------------------
  const rows = data.rows;
  rows.forEach((row, i) => {
    row.at = i; row.below = []; row.open = false;
    row.level = row.parent === null ? 1 : rows[row.parent].level + 1;
    if (row.parent !== null) rows[row.parent].below.push(row);
    row.text = [row.name, row.path, row.class, row.role, row.stage, ...row.ops.map((o) => o[2])].join("\n").toLowerCase();
  });
  const tops = rows.filter((row) => row.parent === null);
  const state = { metric: data.first, words: [], status: "", sort: "order", down: true, flat: false, digits: false, chosen: null, focus: 0 };
  // What a row has nothing of is 0; null is unknown. Calls are not summed.
  const of = (values, metric) => metric in values ? values[metric] : 0;
  const value = (row) => of(state.flat || state.metric === "calls" ? row.own : row.sum, state.metric);
  const big = (v) => { const x = first(v); return x === null ? -1n : BigInt(x); };
  const wholes = () => Object.fromEntries(tops.map((top) => [top.stage, big(of(top.sum, state.metric))]));

  function order(list) {
    if (state.sort === "order") return list;
    const sorted = [...list].sort(state.sort === "name"
      ? (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }) || a.at - b.at
      : (a, b) => { const x = big(value(a)), y = big(value(b)); return x < y ? 1 : x > y ? -1 : a.at - b.at; });
    return state.down ? sorted : sorted.reverse();
  }
  const statusOf = (row) => row.metrics[state.metric] || "exact";
  const wanted = (row) => state.words.every((w) => row.text.includes(w))
    && (!state.status || (state.status === "open" ? ["unexplained", "unsupported"].includes(row.status) : row.status === state.status));

  const filtering = () => state.words.length > 0 || state.status !== "";
  function visible() {
    const some = filtering();
    const hits = new Set(rows.filter(wanted));
    if (state.flat) return order(rows.filter((row) => hits.has(row) && big(value(row)) !== 0n)).map((row) => [row, 1]);
    const kept = new Set();
    if (some) hits.forEach((row) => { for (let r = row; r && !kept.has(r); r = rows[r.parent]) kept.add(r); });
    const shown = [];
    const walk = (list) => order(list).forEach((row) => {
      if (some && !kept.has(row)) return;
      shown.push([row, row.level]);
      if (row.open || (some && row.below.some((r) => kept.has(r)))) walk(row.below);
    });
    walk(tops);
    return shown;
  }
  const opened = (i) => i + 1 < listed.length && listed[i + 1][1] > listed[i][1];
  const place = (row) => listed.findIndex(([r]) => r === row);

  // Tree ---------------------------------------------------------------------------------------------------------------
  const tree = $("tree"), tools = $("tools"), detail = $("detail");
  let listed = [];
  function bar(row, whole) {
    const mine = big(value(row));
    const width = whole > 0n && mine > 0n ? Number(mine * 1000n / whole) / 10 : 0;
    const color = `s${data.stages.indexOf(row.stage) % 8}`;
    return [el("svg", { class: "part", "aria-hidden": "true" }, el("rect", { width: `${Math.min(width, 100)}%`, height: "100%", class: color })),
      whole > 0n && mine >= 0n ? share(mine, whole) : ""];
  }
  // A row stays in the document, and keeps its layout, while filters, branches and order change around it.
  const body = el("tbody"), heads = el("tr", { role: "row" }), grid = el("table", { role: "treegrid", "aria-label": "Modules" }, el("thead", {}, heads), body);
  const lines = new Map();
  let look = "", whole = {}, home = 0, drawn = 0, waiting = 0;
  tree.append(grid);
  function line(row, level) {
    const { unit } = data.metrics[state.metric], v = value(row), none = big(v) === 0n, [picture, share] = bar(row, whole[row.stage]);
    const pad = el("span", { class: "twist", "aria-hidden": "true" });
    pad.style.marginLeft = `${(level - 1) * 1.1}em`;
    const name = state.flat ? `${row.stage}${row.path ? ": " + row.path : ""}` : row.name;
    return el("tr", { role: "row", "data-row": row.at, "aria-level": level },
      el("td", { role: "gridcell" }, el("div", { class: "name" }, pad, el("span", {}, name))), el("td", { role: "gridcell", class: "class less" }, row.class), el("td", { role: "gridcell", class: "n many less" }, row.n > 1 ? exact(row.n) : ""),
      el("td", { role: "gridcell", class: "n", title: `${exact(first(v))} ${unit}` }, none ? "0" : state.digits ? exact(first(v)) : human(first(v), unit), differs(v) ? el("span", { class: "differs" }, " ≠") : ""),
      el("td", { role: "gridcell", class: "less" }, none ? "" : [picture, " ", share]), el("td", { role: "gridcell" }, mark(statusOf(row))));
  }
  function put(to) {  // so many rows of the list at least; the others follow, a screen at a time
    clearTimeout(waiting);
    const all = Math.min(listed.length, MOST);
    let next = body.rows[drawn] ?? null;
    for (; drawn < Math.min(to, all); drawn += 1) {
      const [row, level] = listed[drawn], leaf = state.flat || !row.below.length, open = opened(drawn);
      if (!lines.has(row)) lines.set(row, line(row, level));
      const tr = lines.get(row);
      tr.querySelector(".twist").textContent = leaf ? "\u00a0" : open ? "▾" : "▸";
      if (!leaf) tr.setAttribute("aria-expanded", open);
      tr.setAttribute("aria-selected", row === state.chosen);
      tr.tabIndex = row.at === home ? 0 : -1;
      if (tr === next) next = next.nextSibling; else body.insertBefore(tr, next);
    }
    if (drawn < all) waiting = setTimeout(() => put(drawn + SCREEN), 20);
  }
  function draw() {
    listed = visible();
    const now = [state.metric, state.flat, state.digits].join();
    if (look !== now) { look = now; whole = wholes(); lines.clear(); }
    const head = [["name", "Module", ""], [null, "Class", "less class"], [null, "×", "n less"], ["value", `${data.metrics[state.metric].title}${state.flat ? ", own" : ""}`, "n"],
      [null, "Share of stage", "less"], [null, "Status", ""]];
    heads.replaceChildren(...head.map(([key, title, kind]) => el("th", { scope: "col", class: kind, "aria-sort": key && state.sort === key ? (state.down ? "descending" : "ascending") : null },
      key ? el("button", { type: "button", "data-sort": key, onclick: () => sortBy(key) }, title + (state.sort === key ? (state.down ? " ▾" : " ▴") : "")) : title)));
    grid.setAttribute("aria-rowcount", listed.length + 1);
    const within = listed.slice(0, MOST).map(([row]) => row), kept = new Set(within.map((row) => lines.get(row)));
    [...body.rows].forEach((tr) => { if (!kept.has(tr)) tr.remove(); });
    home = within.some((row) => row.at === state.focus) ? state.focus : within[0]?.at;
    drawn = 0;
    put(SCREEN);
    const hidden = listed.length - within.length;
    said.textContent = `${exact(within.length)} of ${many(rows.length, "row")} shown` + (hidden ? `; ${exact(hidden)} more match: filter, or close a branch` : "") + ".";
  }
  addEventListener("beforeprint", () => put(MOST));
  function lineOf(row) {  // in the document, if it is of the list
    if (!lines.get(row)?.isConnected) put(MOST);
    const tr = lines.get(row);
    return tr?.isConnected ? tr : null;
  }
  const mark = (word) => el("span", { class: `status ${GLYPHS[word] ? word : "other"}` }, el("span", { "aria-hidden": "true" }, `${GLYPHS[word] || "·"} `), word);
  function sortBy(key) {
    if (state.sort !== key) { state.sort = key; state.down = key === "value"; }
    else if (state.down === (key === "value")) state.down = !state.down;
    else state.sort = "order";
    draw();
    tree.querySelector(`[data-sort="${key}"]`).focus();
  }
  function focusRow(row) {
    const tr = lineOf(row);
    tree.querySelectorAll('tr[tabindex="0"]').forEach((other) => { other.tabIndex = -1; });
    state.focus = home = row.at;
    if (tr) { tr.tabIndex = 0; tr.focus({ preventScroll: true }); tr.scrollIntoView({ block: "nearest" }); }
  }
  function toggle(row, open) { row.open = open; state.focus = row.at; draw(); focusRow(row); }
  tree.addEventListener("click", (event) => {
    const tr = event.target.closest("tbody tr");
    if (!tr) return;
    const row = rows[tr.dataset.row];
    if (event.target.closest(".twist") && row.below.length) toggle(row, !opened(place(row)));
    else { state.focus = row.at; go(row); focusRow(row); }
  });
  tree.addEventListener("dblclick", (event) => { const tr = event.target.closest("tbody tr"); if (tr) toggle(rows[tr.dataset.row], !opened(place(rows[tr.dataset.row]))); });
  tree.addEventListener("keydown", (event) => {
    const tr = event.target.closest("tbody tr");
    if (!tr || event.altKey || event.ctrlKey || event.metaKey) return;
    const row = rows[tr.dataset.row], shown = listed.slice(0, MOST), i = place(row), open = opened(i);
    const to = (j) => focusRow(shown[Math.max(0, Math.min(shown.length - 1, j))][0]);
    const act = {
      ArrowDown: () => to(i + 1), ArrowUp: () => to(i - 1), Home: () => to(0), End: () => to(shown.length - 1), PageDown: () => to(i + 15), PageUp: () => to(i - 15),
      ArrowRight: () => { if (state.flat || !row.below.length) return; if (open) to(i + 1); else toggle(row, true); },
      // While a filter holds rows open, the way left is up.
      ArrowLeft: () => { if (!state.flat && open && !filtering()) toggle(row, false); else if (!state.flat && row.parent !== null) focusRow(rows[row.parent]); },
      Enter: () => go(row), " ": () => go(row),
    }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // Details ------------------------------------------------------------------------------------------------------------
  const formula = (xml) => document.importNode(new DOMParser().parseFromString(xml.replace("<math", '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"'), "application/xml").documentElement, true);
  const inlineFormula = (xml) => { const made = formula(xml); made.removeAttribute("display"); return made; };
  const rowTable = (head, body) => el("div", { class: "wide", tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, head.map((t, i) => el("th", { scope: "col", class: i ? "n" : null }, t)))),
    el("tbody", {}, body.map((cells) => el("tr", {}, cells.map((c, i) => el("td", { class: i ? "n" : null }, c)))))));
  function numbers(row) {
    const lines = [];
    for (const [metric, info] of Object.entries(data.metrics)) {
      const v = metric in row.sum ? row.sum[metric] : row.own[metric];
      if (v === undefined) continue;
      const gives = data.gives[row.stage][metric] || [];
      const said = differs(v) ? gives.map((s) => el("div", { class: "differs" }, `${s} ${exact(v[s])}`)) : exact(v);
      const who = differs(v) ? el("span", { class: "differs" }, "✗ differ") : gives.length > 1 ? `✓ ${gives.length} agree` : gives.join();
      const own = row.own[metric];
      lines.push([info.title, differs(v) ? "" : human(v, info.unit), said, ...(row.below.length ? [own === undefined ? "" : exact(first(own))] : []), el("small", { title: gives.join(", ") }, who)]);
    }
    return lines.length ? rowTable(["Metric", "Rounded", "Together", ...(row.below.length ? ["of it own"] : []), "Sources"], lines) : "";
  }
  function formulas(row) {
    const here = row.formulas.filter((f) => f[3] === state.metric), found = [];
    for (const [call, kind, owner, metric, at, result] of here) {
      const [xml, names] = data.math[at], place = `${row.stage}[${call}]`, [calls, symbols] = data.calls[place] || [1, {}];
      const unit = data.metrics[metric].unit;
      found.push(el("div", { class: "formula" },
        el("p", {}, el("b", {}, call ? place : row.stage), calls > 1 ? `, ${many(calls, "call")}` : "", owner ? `, formula ${owner}` : ", the whole stage", kind ? `, ${kind}` : ""),
        el("div", { class: "equation", tabindex: 0 }, formula(xml)),
        names.length ? el("dl", {}, names.map((n) => [el("dt", {}, inlineFormula(data.symbols[n][0])), el("dd", {}, "= " + exact(symbols[n] ?? data.values[n] ?? null)), el("dd", { class: "note" }, data.symbols[n][1] || n)])) : "",
        el("p", {}, "= ", el("b", {}, exact(result)), ` ${unit}`, row.n > 1 && result !== null ? ` each, × ${exact(row.n)} = ${exact(BigInt(result) * BigInt(row.n))} ${unit}` : "")));
    }
    const owners = [...new Set(here.map((f) => f[2]))].filter((o) => data.docs[o]);
    found.push(...owners.map((o) => el("details", {}, el("summary", {}, `Derivation: ${data.docs[o][0]}`), el("pre", {}, data.docs[o][1]), data.docs[o][2] ? el("p", { class: "note" }, `Source: ${data.docs[o][2]}`) : "")));
    return found.length ? [el("h4", {}, `Formulas: ${data.metrics[state.metric].title}`), ...found] : [];
  }
  function operators(row) {
    if (!row.ops.length) return [];
    const lines = row.ops.map(([source, call, kind, costs, labels, n]) => [`${source}${call ? ` ${row.stage}[${call}]` : ""}: ${kind}`,
      exact(of(costs, "flops")), exact(of(costs, "vector_flops")), el("code", {}, labels.join(", ") + (n > labels.length ? ` and ${n - labels.length} more` : ""))]);
    return [el("h4", {}, row.n > 1 ? `Operators of one of the ${exact(row.n)}` : "Operators"), rowTable(["Operator", "FLOP", "vector FLOP", "in the graph"], lines)];
  }
  function show(row) {
    const shapes = [["in", row.in], ["out", row.out]].filter(([, list]) => list.length).map(([word, list]) => el("p", {}, `${word} `, el("code", {}, list.join(", "))));
    const made = Object.entries(row.made);
    const clones = row.findings.map((i) => $(`f${i}`)).filter(Boolean).map((f) => { const c = f.cloneNode(true); c.removeAttribute("id"); return c; });
    const link = "#" + permalink(row);
    detail.replaceChildren(
      el("h3", { tabindex: -1 }, row.path || row.stage), el("p", {}, mark(row.status), [row.class, row.n > 1 && many(row.n, "module")].filter(Boolean).map((s) => ` · ${s}`), row.role ? [" · role ", el("code", {}, row.role)] : ""),
      el("p", { class: "tools" }, el("a", { href: link }, "Link to this row"), row.box ? el("a", { href: `#${row.box}`, onclick: (e) => { e.preventDefault(); box(row.box); } }, "In the callgraph") : "",
        el("button", { type: "button", onclick: () => { detail.replaceChildren(); state.chosen = null; draw(); focusRow(row); } }, "Close")),
      ...(clones.length ? [el("h4", {}, "Findings"), el("ul", { class: "findings" }, clones)] : []),
      ...(row.below.length ? [] : formulas(row)), el("h4", {}, "Numbers"), numbers(row), row.compared ? el("p", { class: "note" }, `${many(row.compared, "comparison")} of this module itself.`) : "",
      ...(row.below.length ? formulas(row) : []), ...operators(row),
      ...(shapes.length || made.length ? [el("h4", {}, "First call"), ...shapes, made.length ? el("p", {}, "made with ", el("code", {}, made.map(([k, v]) => `${k}=${JSON.stringify(v)}`).join(", "))) : ""] : []));
  }

  // Links --------------------------------------------------------------------------------------------------------------
  const quoted = (text) => encodeURIComponent(text).replace(/%2F/g, "/");
  const permalink = (row) => {
    const same = rows.filter((r) => r.stage === row.stage && r.role === row.role);
    return `${quoted(row.stage)}/${row.parent === null ? "" : quoted(row.role && same.length === 1 ? row.role : row.path)}`;
  };
  function names(pattern, path) {  // whether layers.[0-3,5].attn names layers.2.attn
    const a = pattern.split("."), b = path.split(".");
    return a.length === b.length && a.every((part, i) => part === b[i] || (/^\[[\d,-]+\]$/.test(part) && /^\d+$/.test(b[i])
      && part.slice(1, -1).split(",").some((range) => { const [low, high] = range.split("-").map(Number); return Number(b[i]) >= low && Number(b[i]) <= (high ?? low); })));
  }
  function find(stage, path) {
    const inside = rows.filter((r) => stage === null || r.stage === stage);
    if (stage !== null && path === "") return inside[0];
    for (let p = path; p; p = p.slice(0, Math.max(0, p.lastIndexOf(".")))) {
      const hit = inside.find((r) => r.path === p || r.role === path) || inside.find((r) => r.path && names(r.path, p));
      if (hit) return hit;
    }
    return inside[0];
  }
  const go = (row) => { const hash = "#" + permalink(row); if (location.hash !== hash) location.hash = hash; else choose(row); };
  function choose(row) {
    for (let r = rows[row.parent]; r; r = rows[r.parent]) r.open = true;
    state.chosen = row; state.focus = row.at;
    if (!wanted(row)) { state.words = []; state.status = ""; search.value = pick.value = ""; }
    draw(); show(row);
    lineOf(row)?.scrollIntoView({ block: "nearest" });
  }
  function box(id) {
    document.querySelectorAll(".graph .chosen").forEach((g) => g.classList.remove("chosen"));
    const found = $(id);
    found.classList.add("chosen");
    found.scrollIntoView({ block: "center", inline: "center" });
    (found.querySelector("a") || found).focus({ preventScroll: true });
  }
  function route() {
    let hash;
    try { hash = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const cut = hash.indexOf("/");
    if (cut < 0) return;
    const stage = hash.slice(0, cut), row = find(data.stages.includes(stage) ? stage : null, hash.slice(cut + 1));
    if (!row) return;
    choose(row);
    if (!tree.contains(document.activeElement)) $("modules").scrollIntoView();
  }
  addEventListener("hashchange", route);

  // Tools --------------------------------------------------------------------------------------------------------------
  const search = el("input", { type: "search", "aria-label": "Filter modules", placeholder: "Filter: path, class, role, operator" });
  const pick = el("select", { "aria-label": "Status" }, options(["", "open", ...[...new Set(rows.map((r) => r.status))].sort()].filter((s, i, list) => list.indexOf(s) === i)));
  const check = (key, title) => el("label", {}, el("input", { type: "checkbox", onchange: (e) => { state[key] = e.target.checked; draw(); } }), ` ${title}`);
  const said = el("p", { class: "said", role: "status" });
  search.addEventListener("input", () => { state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean); draw(); });
  pick.addEventListener("change", () => { state.status = pick.value; draw(); });
  const cells = () => [["Stage", "Module", "Modules", "Class", data.metrics[state.metric].title, "Status"], ...listed.map(([r]) => [r.stage, r.path, String(r.n), r.class, String(first(value(r)) ?? ""), statusOf(r)])];
  tools.append(search, pick, check("flat", "flat, own cost"), check("digits", "all digits"),
    button("Open all", () => { rows.forEach((r) => { r.open = true; }); draw(); }), button("Close all", () => { rows.forEach((r) => { r.open = false; }); draw(); }),
    ...copies(cells, "llrlrl"), said);

  if (tops.length === 1) tops[0].open = true;
  chosen = (name) => {
    if (!data.metrics[name]) return;  // time is of stages alone
    state.metric = name; draw(); if (state.chosen) show(state.chosen);
  };
  metric(data.first);
  route();
})();
