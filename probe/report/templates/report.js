(() => {
  "use strict";
  const { scores, attention } = JSON.parse(document.getElementById("data").textContent);
  const { nLayers, nHeads, kvHeads, colours, phenomena } = scores;
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const NONE = "–";
  const narrow = matchMedia("(max-width: 44rem)");

  // numbers: the same digits as numbers.py
  const fixed = (v, digits = 3) => (v === null ? NONE : v.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"));
  const pValue = (v) => (v === null ? NONE : v < 0.0001 ? "< 0.0001" : v.toFixed(4));
  const interval = (low, high) => (low === null || high === null ? NONE : `[${fixed(low)}, ${fixed(high)}]`);
  const at = (column, index) => (Array.isArray(column) ? column[index] : column);
  const label = (index) => `${Math.floor(index / nHeads)}.${index % nHeads}`;

  const signed = (v) => (v === null ? NONE : v === 0 ? "0" : v.toFixed(0).replace(/^(?!-)/, "+").replace("-", "−"));

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
    for (const line of all("tr[data-column]")) {
      const p = phenomena[line.dataset.column];
      line.classList.toggle("current", Number(line.dataset.column) === phenomenon);
      for (const cell of all("[data-field]", line)) cell.textContent = field(p, cell.dataset.field, head);
    }
    showCard(phenomena[phenomenon], head);
    const selected = `#head=${label(head)}&`;
    for (const row of all(".sortable tbody tr")) {
      row.classList.toggle("current", row.querySelector("a").getAttribute("href").startsWith(selected));
    }
  }
  function field(p, wanted, index) {
    const number = (column) => at(p.numbers[column], index);
    if (wanted === "verdict") return verdict(p, index);
    return wanted === "interval" ? interval(number("low"), number("high")) : fixed(number(wanted));
  }

  // ---- its card: the same lines and words as card.py
  function outcome(p, index) {
    const looks = verdict(p, index);
    if (!p.tested) return looks;
    if (p.causal === null) return `attention leg: ${looks}; causal leg: not measured`;
    if (p.causal === "") return `attention leg: ${looks}; causal leg: untestable here`;
    const { tested, passed, verdicts } = p.causal;
    const leg = tested[index] !== "1" ? "not tested" : passed[index] === "1" ? "pass" : "fail";
    return `${verdicts[index]} (attention leg: ${looks}, causal leg: ${leg})`;
  }
  const withInterval = (text, low, high) => (interval(low, high) === NONE ? text : `${text} ${interval(low, high)}`);
  function attentionLines(p, index) {
    const n = (column) => at(p.numbers[column], index);
    const against = [
      ["chance", n("chance")], [p.rival[index], n("best_rival_value")], ["best random head", n("random_max")],
      ["best under shuffled labels", n("shuffled_max")],
    ];
    const known = against.filter(([name, value]) => name && value !== null).map(([name, value]) => `${name} ${fixed(value)}`);
    return {
      value: [withInterval(fixed(n("value")), n("low"), n("high")), known.join(" · ") || NONE],
      selection_value: [fixed(n("selection_value")), NONE],
      mass: [p.statistic === "mass" ? NONE : fixed(n("mass")), `if uniform ${fixed(n("mass_chance"))}`],
      value_before: [fixed(n("value_before")), NONE],
      value_after: [fixed(n("value_after")), NONE],
      first_mass: [fixed(n("first_mass")), NONE],
      distance: [fixed(n("distance")), NONE],
      argmax_share: [fixed(n("argmax_share")), `offset ${signed(n("argmax_offset"))}`],
      entropy: [fixed(n("entropy")), `if uniform ${fixed(n("entropy_max"))}`],
      word_accuracy: [fixed(n("word_accuracy")), NONE],
      p_holm: [pValue(n("p_holm")), `uncorrected ${pValue(n("p"))}`],
      q: [pValue(n("q")), NONE],
    };
  }
  function causalLines(p, index) {
    if (!p.causal) return {};
    const n = (column) => at(p.causal.numbers[column], index);
    const two = (column) => fixed(n(column), 2);
    const limit = () => {
      const peers = n("n_peers");
      const few = peers !== null && peers < 20 ? ` (of ${peers} only)` : "";
      return `heads that write as much, 95th percentile ${peers === 0 ? "no such head" : two("limit") + few}`;
    };
    return {
      patch: [withInterval(two("patch"), n("low"), n("high")), p.causal.tested[index] === "1" ? limit() : NONE],
      share: [two("share"), `paired difference ${fixed(p.causal.paired, 2)} nats`],
      ...Object.fromEntries(
        ["pattern", "mean", "resample", "edge"].map((kind) => [kind, [two(kind), `p ${pValue(n(`p_${kind}`))}`]]),
      ),
      why: [p.causal.whys[index] || NONE, NONE],
      unrelated_loss: [fixed(n("unrelated_loss")), p.causal.mostLoss === null ? NONE : `allowed ${p.causal.mostLoss}`],
      causal_p_holm: [pValue(n("p_holm")), `uncorrected ${pValue(n("p"))}`],
      screen: [two("screen"), NONE],
      norm: [two("norm"), NONE],
    };
  }
  function showCard(p, index) {
    document.querySelector('[data-show="phenomenon"]').textContent = p.name;
    document.querySelector('[data-show="outcome"]').textContent = outcome(p, index);
    const lines = { ...attentionLines(p, index), ...causalLines(p, index) };
    for (const row of all("[data-line]")) {
      const [value, control] = lines[row.dataset.line] || [NONE, NONE];
      row.hidden = value === NONE;
      row.cells[1].textContent = value;
      row.cells[2].textContent = control;
      if (row.dataset.line === "value") row.cells[0].textContent = p.scales.value.label;
    }
    for (const part of all(".card tbody")) part.hidden = !part.querySelector("[data-line]:not([hidden])");
  }

  // ---- prompts: tokens stay, only their colours and numbers change
  let codes = null;
  async function decode() {
    const packed = Uint8Array.from(atob(attention.codes), (c) => c.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    codes = new Uint8Array(await new Response(plain).arrayBuffer());
  }
  const examples = all(".example");
  function gatherExamples() {
    const more = document.querySelector(".more");
    if (!more) return;
    // with a script there is one list, so that it can be sorted
    const list = document.querySelector(".examples");
    const button = Object.assign(document.createElement("button"), { type: "button", className: "all" });
    button.textContent = `Show all ${examples.length} prompts`;
    button.addEventListener("click", () => {
      list.classList.remove("few");
      button.remove();
    });
    list.append(...all(".example", more));
    list.classList.add("few");
    more.replaceWith(button);
  }
  const margins = [];
  function orderExamples() {
    const sign = { drawn: 0, earned: -1, cost: 1 }[byId("order").value];
    const order = examples.map((_, i) => i).sort((a, b) => sign * (margins[a] - margins[b]) || a - b);
    document.querySelector(".examples").append(...order.map((i) => examples[i]));
  }
  function showTally(head) {
    const missed = attention.examples.flatMap(({ hits }, i) => (hits[head] === "1" ? [] : [i + 1]));
    const found = `${examples.length - missed.length} the target gets more than every foil`;
    document.querySelector('[data-show="tally"]').textContent = missed.length ? `${found}, not in ${missed.join(", ")}` : found;
  }
  function showExamples({ head }) {
    if (codes === null) return;
    showTally(head);
    examples.forEach((element, number) => {
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
      margins[number] = sums.target - Math.max(0, ...example.foils.map((_, i) => sums[`foil-${i}`]));
      const nats = example.patch === null ? null : at(example.patch, head);
      const patch = element.querySelector('[data-show="patch"]');
      patch.hidden = nats === null;
      patch.textContent = ` · patched ${fixed(nats, 2)} nats`;
      const hit = element.querySelector('[data-show="hit"]'); // none where there are no foils
      if (hit) hit.textContent = example.hits[head] === "1" ? "✓ target above every foil" : "✕ target not above every foil";
    });
    orderExamples();
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
  gatherExamples();
  all("table.sortable").forEach(makeSortable);
  byId("phenomenon").addEventListener("change", (event) => go({ phenomenon: Number(event.target.value) }));
  byId("metric").addEventListener("change", (event) => go({ metric: event.target.value }));
  byId("order")?.addEventListener("change", orderExamples);
  byId("order-form")?.addEventListener("submit", (event) => event.preventDefault());
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
