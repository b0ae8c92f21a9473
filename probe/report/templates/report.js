(() => {
  "use strict";
  const { scores, attention } = JSON.parse(document.getElementById("data").textContent);
  const { nLayers, nHeads, kvHeads, colours, phenomena } = scores;
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const NONE = "–";
  const narrow = matchMedia("(max-width: 44rem)");

  // numbers: the same digits as numbers.py
  const fixed = (v, digits = 3) => (v === null ? NONE : v.toFixed(digits).replace("-", "−"));
  const pValue = (v) => (v === null ? NONE : v < 0.0001 ? "< 0.0001" : v.toFixed(4));
  const interval = (low, high) => (low === null || high === null ? NONE : `[${fixed(low)}, ${fixed(high)}]`);
  const at = (column, index) => (Array.isArray(column) ? column[index] : column);
  const label = (index) => `${Math.floor(index / nHeads)}.${index % nHeads}`;

  function verdict(phenomenon, index) {
    if (!phenomenon.tested) return "described";
    if (phenomenon.passed[index] === "1") return "pass";
    return phenomenon.picked[index] === "1" ? "fail" : "not tested";
  }

  // ---- state: in the fragment, so that a link points at a finding
  const start = { head: null, phenomenon: scores.main, metric: "value" };

  function read() {
    const state = { ...start };
    if (!location.hash.startsWith("#head=")) return state;
    const given = new URLSearchParams(location.hash.slice(1));
    const [, layer, head] = (given.get("head") || "").match(/^(\d+)\.(\d+)$/) || [];
    if (Number(layer) < nLayers && Number(head) < nHeads) state.head = Number(layer) * nHeads + Number(head);
    const named = phenomena.findIndex((p) => p.name === given.get("phenomenon"));
    if (named >= 0) state.phenomenon = named;
    if (given.get("metric") in phenomena[0].scales) state.metric = given.get("metric");
    return state;
  }

  function go(change) {
    const state = { ...current, ...change };
    const metric = state.metric === "value" ? "" : `&metric=${state.metric}`;
    location.hash = `head=${label(state.head)}&phenomenon=${encodeURIComponent(phenomena[state.phenomenon].name)}${metric}`;
  }

  // ---- colours
  const channels = colours.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  function colour(share) {
    const x = Math.min(Math.max(share, 0), 1) * (channels.length - 1);
    const i = Math.min(Math.floor(x), channels.length - 2);
    return `rgb(${channels[i].map((c, k) => Math.round(c + (x - i) * (channels[i + 1][k] - c))).join(" ")})`;
  }

  // ---- score map
  const map = byId("map");
  const cells = [];
  function place(element, layer, head) {
    element.style.setProperty("--l", layer);
    element.style.setProperty("--h", head);
    map.append(element);
    return element;
  }
  function name(className, text, layer, head) {
    const element = place(document.createElement("span"), layer, head);
    element.className = className;
    element.textContent = text;
    element.setAttribute("aria-hidden", "true");
  }
  function buildMap() {
    name("corner", "", 0, 0);
    const every = Math.ceil(nLayers / 30);
    for (let l = 0; l < nLayers; l++) if (l % every === 0) name(l ? "layer" : "layer zero", l, l, 0);
    const some = Math.ceil(nHeads / 12);
    for (let h = 0; h < nHeads; h++) name(h ? (h % some ? "row minor" : "row") : "row zero", h, 0, h);
    for (let index = 0; index < nLayers * nHeads; index++) {
      const cell = place(document.createElement("button"), Math.floor(index / nHeads), index % nHeads);
      cell.type = "button";
      cell.tabIndex = -1;
      cells.push(cell);
    }
    const of = (event) => cells.indexOf(event.target);
    map.addEventListener("click", (event) => of(event) >= 0 && go({ head: of(event) }));
    for (const kind of ["mouseover", "focusin"]) {
      map.addEventListener(kind, (event) => of(event) >= 0 && (byId("readout").textContent = cells[of(event)].title));
    }
    map.addEventListener("keydown", (event) => of(event) >= 0 && move(event, of(event)));
  }
  function move(event, index) {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [across, down] = step;
    const layer = Math.floor(index / nHeads) + (narrow.matches ? down : across);
    const head = (index % nHeads) + (narrow.matches ? across : down);
    if (layer < 0 || layer >= nLayers || head < 0 || head >= nHeads) return;
    focusable(layer * nHeads + head).focus();
  }
  function focusable(index) {
    for (const cell of cells) cell.tabIndex = -1;
    cells[index].tabIndex = 0;
    return cells[index];
  }
  function showMap({ head, phenomenon, metric }) {
    const p = phenomena[phenomenon];
    const scale = p.scales[metric];
    cells.forEach((cell, index) => {
      const value = at(p.numbers[metric], index);
      const range = metric === "value" ? ` ${interval(at(p.numbers.low, index), at(p.numbers.high, index))}` : "";
      const outcome = verdict(p, index);
      cell.title = `layer ${Math.floor(index / nHeads)}, head ${index % nHeads}: ${scale.label} ${fixed(value)}${range}, ` +
        (p.tested ? `attention leg: ${outcome}` : outcome);
      cell.setAttribute("aria-label", cell.title);
      cell.style.setProperty("--c", value === null ? "transparent" : colour((value - scale.low) / (scale.high - scale.low)));
      cell.className = { pass: "passed", fail: "picked" }[outcome] || "";
      cell.toggleAttribute("aria-current", index === head);
    });
    focusable(head);
    byId("readout").textContent = cells[head].title;
    showScale(scale);
  }
  function showScale(scale) {
    byId("scale-bar").style.background = `linear-gradient(to right, ${colours.join(",")})`;
    byId("scale-label").textContent = scale.label;
    byId("scale-high").textContent = fixed(scale.high, scale.high === 1 ? 0 : 3);
    const marks = [...scale.marks].sort((a, b) => a[1] - b[1]);
    // names run away from each other where there is room; the longer stem stands on the side without a name
    const shares = marks.map(([, value]) => (value - scale.low) / (scale.high - scale.low));
    const isLeft = shares.map((share, i) => share > (i === 0 && marks.length > 1 ? 0.3 : 0.5));
    byId("scale-marks").style.setProperty("--rows", marks.length);
    byId("scale-marks").replaceChildren(...marks.map(([words, value], i) => {
      const mark = document.createElement("span");
      mark.textContent = `${words} ${fixed(value)}`;
      mark.style.left = `${100 * shares[i]}%`;
      if (isLeft[i]) mark.className = "left";
      mark.style.setProperty("--row", isLeft.every(Boolean) ? marks.length - 1 - i : i);
      return mark;
    }));
  }

  // ---- the selected head
  function showHead({ head, phenomenon }) {
    for (const element of all('[data-show="label"]')) element.textContent = label(head);
    const kv = kvHeads[head % nHeads];
    document.querySelector('[data-show="where"]').textContent =
      `layer ${Math.floor(head / nHeads)}, query head ${head % nHeads}` + (kv === null ? "" : ` → key-value head ${kv}`);
    for (const element of all("[data-column]")) {
      const p = phenomena[element.dataset.column];
      element.classList.toggle("current", Number(element.dataset.column) === phenomenon);
      if (element.dataset.field) element.textContent = field(p, element.dataset.field, head);
    }
    const selected = `#head=${label(head)}&`;
    for (const row of all(".sortable tbody tr")) {
      row.classList.toggle("current", row.querySelector("a").getAttribute("href").startsWith(selected));
    }
  }
  function field(p, wanted, index) {
    const number = (column) => at(p.numbers[column], index);
    if (wanted === "verdict") return verdict(p, index);
    if (wanted === "interval") return interval(number("low"), number("high"));
    if (wanted === "rival") return p.rival[index] === null ? NONE : `${p.rival[index]} ${fixed(number("best_rival_value"))}`;
    return ["p", "p_holm", "q"].includes(wanted) ? pValue(number(wanted)) : fixed(number(wanted));
  }

  // ---- prompts: tokens stay, only their colours and numbers change
  let codes = null;
  async function decode() {
    const packed = Uint8Array.from(atob(attention.codes), (c) => c.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    codes = new Uint8Array(await new Response(plain).arrayBuffer());
  }
  function showExamples({ head }) {
    if (codes === null) return;
    all(".example").forEach((element, number) => {
      const example = attention.examples[number];
      const from = example.offset + head * example.pieces;
      const row = codes.subarray(from, from + example.pieces);
      const share = (piece) => (row[piece] / 255) ** 2;
      const sum = (members) => members.reduce((total, piece) => total + share(piece), 0);
      all(".strip .tok", element).forEach((token, piece) => {
        token.style.setProperty("--a", (row[piece] / 255).toFixed(3));
        token.title = `≈ ${fixed(share(piece))}`;
      });
      const sums = { target: sum(example.target), first: share(0) };
      example.foils.forEach((foil, i) => (sums[`foil-${i}`] = sum(foil)));
      for (const shown of all("[data-sum]", element)) shown.textContent = `≈ ${fixed(sums[shown.dataset.sum], 2)}`;
      const hit = element.querySelector('[data-show="hit"]'); // none where there are no foils
      if (hit) hit.textContent = example.hits[head] === "1" ? "✓ target above every foil" : "✕ target not above every foil";
    });
  }

  // ---- tables
  function key(cell, column) {
    const text = cell.textContent.trim();
    if (column === 0) return text.split(".").reduce((total, part) => total * 1e6 + Number(part), 0);
    if (column === 1) return ["✓ pass", "✕ fail", "not tested", "described"].indexOf(text);
    if (text.startsWith("<")) return 0;
    const number = text.replaceAll("−", "-").match(/-?\d+(\.\d+)?(?=[,\]]|$)/);
    return number ? Number(number[0]) : null;
  }
  function sort(table, column, header) {
    const first = column < 2 ? "ascending" : "descending";
    const other = column < 2 ? "descending" : "ascending";
    const direction = header.getAttribute("aria-sort") === first ? other : first;
    for (const th of all("thead th", table)) th.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const rows = all("tbody tr", table).map((row) => [key(row.cells[column], column), row]);
    // what has no number stays last in both directions
    rows.sort(([a], [b]) => (a === null) - (b === null) || sign * (a - b));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }
  function makeSortable(table) {
    all("thead th", table).forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(table, column, header));
    });
  }

  // ---- start
  let current = start;
  function show() {
    current = read();
    if (current.head === null) current.head = best;
    byId("phenomenon").value = current.phenomenon;
    byId("metric").value = current.metric;
    showMap(current);
    showHead(current);
    showExamples(current);
  }
  function toPanel() {
    byId("head").scrollIntoView();
    byId("head-title").focus({ preventScroll: true });
  }
  const [bestLayer, bestHead] = document.querySelector('[data-show="label"]').textContent.split(".").map(Number);
  const best = bestLayer * nHeads + bestHead;
  document.documentElement.classList.add("js");
  all("[data-anchor]").forEach((anchor) => anchor.remove()); // only for pages without script
  buildMap();
  all("table.sortable").forEach(makeSortable);
  byId("phenomenon").addEventListener("change", (event) => go({ phenomenon: Number(event.target.value) }));
  byId("metric").addEventListener("change", (event) => go({ metric: event.target.value }));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#head="]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    location.hash = link.getAttribute("href");
    show();
    toPanel();
  });
  addEventListener("hashchange", show);
  show();
  if (location.hash.startsWith("#head=")) toPanel();
  if (attention.examples.length) decode().then(() => showExamples(current));
})();
