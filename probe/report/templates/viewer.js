(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const { prompts, layers, heads, kv, colour } = data;
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const narrow = matchMedia("(max-width: 44rem)");
  const MOST = 1024; // cells of a picture along each side
  const NAMED = 40; // tokens up to which they stand along the picture
  const SHOWN = 24; // keys whose vectors are shown
  const framed = location.protocol === "about:"; // in a notebook: no address of its own
  const nHeads = heads.length;
  const label = (index) => `${layers[Math.floor(index / nHeads)]}.${heads[index % nHeads]}`;
  const indexOf = Object.fromEntries(Array.from({ length: layers.length * nHeads }, (_, i) => [label(i), i]));
  const fixed = (v, digits = 3) => v.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
  const weight = (code) => (code / 255) ** 2;
  const about = (code) => `≈ ${fixed(weight(code))}`;

  // ---- texts: what a row and a column are called
  for (const p of prompts) {
    p.nKeys = p.tokens.length;
    p.at = p.at === "all" ? p.tokens.map((_, i) => i) : p.at;
    p.nRows = p.at ? p.at.length : p.rows.length;
    p.cache = {};
  }
  const key = (p, k) => `“${p.tokens[k][1].trim()}” (${k})`;
  const query = (p, q) => (p.at ? key(p, p.at[q]) : `“${p.rows[q]}” (${q})`);

  // ---- patterns: decoded when first asked for
  async function bytes(packed) {
    const deflated = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const plain = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(plain).arrayBuffer();
  }
  async function unpack(p, [kind, packed]) {
    const buffer = await bytes(packed);
    const { nKeys, nRows } = p;
    if (kind === "top") {
      const n = nRows * data.top;
      const keys = new Uint16Array(buffer, 0, n);
      const codes = new Uint8Array(buffer, 2 * n, n);
      const rest = new Uint8Array(buffer, 3 * n, nRows);
      const each = (q, visit) => {
        for (let i = q * data.top; i < (q + 1) * data.top; i++) visit(keys[i], codes[i]);
      };
      return { each, rest: (q) => rest[q] };
    }
    const codes = new Uint8Array(buffer);
    const from = kind === "half" ? (q) => (q * (q + 1)) / 2 : (q) => q * nKeys;
    const stop = kind === "half" ? (q) => q + 1 : () => nKeys;
    const each = (q, visit) => {
      for (let k = 0, i = from(q); k < stop(q); k++) visit(k, codes[i + k]);
    };
    return { each, rest: () => null };
  }
  function pattern(p, head) {
    const packed = p.patterns[head];
    return packed ? (p.cache[head] ||= unpack(p, packed)) : null;
  }
  function row(found, p, q) {
    const codes = new Uint8Array(p.nKeys);
    found.each(q, (k, code) => (codes[k] = code));
    return codes;
  }
  function column(found, p, k) {
    const codes = new Uint8Array(p.nRows);
    for (let q = 0; q < p.nRows; q++) found.each(q, (key, code) => key === k && (codes[q] = code));
    return codes;
  }

  // ---- state: in the fragment where there is one, so that a link points at what is seen
  const state = { head: data.best, text: 0, query: prompts.map((p) => p.start), key: prompts.map(() => null), mode: "from" };
  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (given.get("head") in indexOf) state.head = indexOf[given.get("head")];
    const text = Number(given.get("text") || 0);
    const p = prompts[text];
    if (!p) return;
    state.text = text;
    if (given.has("query") && Number(given.get("query")) < p.nRows) state.query[text] = Number(given.get("query"));
    if (given.has("key") && Number(given.get("key")) < p.nKeys) state.key[text] = Number(given.get("key"));
    state.mode = given.get("mode") === "to" ? "to" : "from";
  }
  function fragment() {
    const t = state.text;
    const parts = [`head=${label(state.head)}`, `query=${state.query[t]}`];
    if (state.key[t] !== null) parts.push(`key=${state.key[t]}`);
    if (state.mode === "to") parts.push("mode=to");
    if (t) parts.push(`text=${t}`);
    return `#${parts.join("&")}`;
  }
  function open(head) {
    state.head = head;
    if (!framed) location.hash = fragment();
    show();
  }
  function choose(t, change) {
    state.text = t;
    if ("query" in change) state.query[t] = change.query;
    if ("key" in change) state.key[t] = change.key;
    if (!framed) history.replaceState(null, "", fragment());
    show();
  }

  // ---- thumbnails of all heads
  const thumbs = all(".thumb");
  function words(index) {
    const own = kv ? ` → key-value head ${kv[index % nHeads]}` : "";
    const where = `layer ${layers[Math.floor(index / nHeads)]}, query head ${heads[index % nHeads]}${own}`;
    return prompts[0].patterns[index] ? where : `${where}; its pattern is not in this page, only the thumbnail`;
  }
  function focusable(index) {
    for (const thumb of thumbs) thumb.tabIndex = -1;
    thumbs[index].tabIndex = 0;
    return thumbs[index];
  }
  function buildGrid() {
    thumbs.forEach((thumb, index) => {
      thumb.title = words(index);
      thumb.classList.toggle("absent", !prompts[0].patterns[index]);
    });
    const grid = byId("grid");
    const of = (event) => thumbs.indexOf(event.target);
    grid.addEventListener("click", (event) => of(event) >= 0 && open(of(event)));
    for (const kind of ["mouseover", "focusin"]) {
      grid.addEventListener(kind, (event) => of(event) >= 0 && (byId("readout").textContent = words(of(event))));
    }
    grid.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
      if (!step || of(event) < 0) return;
      event.preventDefault();
      const [across, down] = narrow.matches ? [step[1], step[0]] : step;
      const layer = Math.floor(of(event) / nHeads) + across;
      const head = (of(event) % nHeads) + down;
      if (layer >= 0 && layer < layers.length && head >= 0 && head < nHeads) focusable(layer * nHeads + head).focus();
    });
    byId("sheet")?.addEventListener("change", (event) => (grid.className = `map heads sheet-${event.target.value}`));
  }

  // ---- one text: tokens, picture, numbers
  const texts = all(".text").map((root, t) => ({
    root, t, p: prompts[t], strips: root.querySelector(".strips"), plane: root.querySelector(".plane"),
    blocks: all(".block", root), canvas: root.querySelector("canvas"), codes: null, drawn: null, sought: -1,
  }));
  function spans(p, from, to) {
    const made = document.createDocumentFragment();
    for (let i = from; i < to; i++) {
      const [lead, text, rtl] = p.tokens[i];
      const token = document.createElement(rtl ? "bdi" : "span");
      token.className = "tok";
      token.textContent = text;
      token.dataset.i = i;
      made.append(lead, token);
    }
    return made;
  }
  function buildStrip(text) {
    const { p, blocks, strips } = text;
    if (!blocks.length) all(".tok", strips).forEach((token, i) => (token.dataset.i = i));
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        // out of sight a block is one text again: the same words, so the same lines, and no node a token
        const start = blocks.indexOf(entry.target) * data.block;
        const stop = Math.min(start + data.block, p.nKeys);
        if (entry.isIntersecting) {
          entry.target.replaceChildren(spans(p, start, stop));
          shade(text, entry.target);
          if (text.sought >= start && text.sought < stop) reveal(text, text.sought);
        } else entry.target.textContent = p.tokens.slice(start, stop).map(([lead, word]) => lead + word).join("");
      }
    }, { rootMargin: "300px" });
    blocks.forEach((block) => watch.observe(block));
    strips.addEventListener("click", (event) => event.target.dataset.i !== undefined && pick(text, Number(event.target.dataset.i)));
    strips.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (!step) return;
      event.preventDefault();
      const many = chosenIsRow(p) ? p.nRows : p.nKeys;
      const now = chosenIsRow(p) ? state.query[text.t] : currentKey(text);
      const next = Math.min(Math.max(now + step, 0), many - 1);
      choose(text.t, chosenIsRow(p) ? { query: next } : { key: next });
      reveal(text, chosenIsRow(p) ? p.at[next] : next);
    });
    const queries = text.root.querySelector(".queries");
    if (!queries) return;
    p.rows.forEach((word, q) => {
      const token = document.createElement("span");
      token.className = "tok";
      token.textContent = word;
      token.dataset.q = q;
      queries.append(token, " ");
    });
    queries.addEventListener("click", (event) => event.target.dataset.q !== undefined && choose(text.t, { query: Number(event.target.dataset.q) }));
  }
  const chosenIsRow = (p) => state.mode === "from" && p.at !== null;
  function pick(text, i) {
    const q = chosenIsRow(text.p) ? text.p.at.indexOf(i) : -1;
    if (q >= 0) choose(text.t, { query: q, key: null });
    else if (state.mode === "to" || text.p.at === null) choose(text.t, { key: i });
  }
  function reveal(text, i) {
    const token = text.strips.querySelector(`[data-i="${i}"]`);
    text.sought = token ? -1 : i; // of a block out of sight: first the block, then the token in it
    const box = text.strips.getBoundingClientRect();
    const place = (token || text.blocks[Math.floor(i / data.block)]).getBoundingClientRect();
    if (place.top < box.top || place.bottom > box.bottom) text.strips.scrollTop += place.top - box.top - box.height / 2;
  }
  const currentKey = (text) => state.key[text.t] ?? text.peak ?? 0;

  function shade(text, root = text.strips) {
    const { p, t, codes } = text;
    const chosen = state.mode === "from" ? (p.at ? p.at[state.query[t]] : -1) : currentKey(text);
    const second = state.mode === "from" ? currentKey(text) : p.at ? p.at[state.query[t]] : -1;
    for (const token of all(".tok[data-i]", root)) {
      const i = Number(token.dataset.i);
      token.style.setProperty("--a", codes ? (codes[i] / 255).toFixed(3) : 0);
      token.title = codes ? `${i}: ${about(codes[i])}` : `${i}`;
      token.classList.toggle("chosen", i === chosen);
      token.classList.toggle("second", i === second && i !== chosen);
    }
    for (const token of all(".queries .tok", text.root)) token.classList.toggle("chosen", Number(token.dataset.q) === state.query[t]);
  }

  function draw(text, found) {
    const { p, canvas } = text;
    const wide = Math.min(p.nKeys, MOST);
    const tall = Math.min(p.nRows, MOST);
    canvas.width = wide;
    canvas.height = tall;
    canvas.style.aspectRatio = `${wide} / ${tall}`;
    const picture = new ImageData(wide, tall);
    for (let q = 0; q < p.nRows; q++) {
      const line = Math.floor((q * tall) / p.nRows) * wide;
      found.each(q, (k, code) => {
        const i = 4 * (line + Math.floor((k * wide) / p.nKeys));
        if (code <= picture.data[i + 3]) return; // of several cells in one dot the largest is seen
        [picture.data[i], picture.data[i + 1], picture.data[i + 2]] = colour;
        picture.data[i + 3] = code;
      });
    }
    canvas.getContext("2d").putImageData(picture, 0, 0);
    text.drawn = state.head;
  }
  function markCell({ plane, p, t }, k) {
    const q = state.query[t];
    Object.assign(plane.querySelector(".at-row").style, { top: `${(100 * q) / p.nRows}%`, height: `max(3px, ${100 / p.nRows}%)` });
    Object.assign(plane.querySelector(".at-key").style, { left: `${(100 * k) / p.nKeys}%`, width: `max(3px, ${100 / p.nKeys}%)` });
  }
  function cellWords(text, q, k) {
    const codes = row(text.found, text.p, q);
    const rest = text.found.rest(q);
    const known = codes[k] || rest === null;
    const says = known ? about(codes[k]) : `not among the ${data.top} largest of its row`;
    const left = rest === null ? "" : `; all keys not kept have ${about(rest)} together`;
    return `${query(text.p, q)} → ${key(text.p, k)}: ${says}${left}`;
  }
  function buildPlane(text) {
    const { plane, p, t } = text;
    if (Math.max(p.nRows, p.nKeys) <= NAMED) {
      const named = (words) => words.map((textContent) => Object.assign(document.createElement("span"), { textContent }));
      const axes = plane.parentElement;
      axes.classList.toggle("many", Math.max(p.nRows, p.nKeys) > NAMED / 2);
      axes.querySelector(".keys").append(...named(p.tokens.map(([, word]) => word.trim())));
      axes.querySelector(".rows").append(...named(p.at ? p.at.map((k) => p.tokens[k][1].trim()) : p.rows));
    }
    const at = (event) => {
      const box = text.canvas.getBoundingClientRect();
      const part = (x, from, size, n) => Math.min(Math.max(Math.floor(((x - from) / size) * n), 0), n - 1);
      return [part(event.clientY, box.top, box.height, p.nRows), part(event.clientX, box.left, box.width, p.nKeys)];
    };
    const cell = text.root.querySelector(".cell");
    plane.addEventListener("pointermove", (event) => text.found && (cell.textContent = cellWords(text, ...at(event))));
    plane.addEventListener("pointerleave", () => showCell(text));
    plane.addEventListener("click", (event) => {
      const [q, k] = at(event);
      choose(t, { query: q, key: k });
    });
    plane.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      const q = Math.min(Math.max(state.query[t] + step[0], 0), p.nRows - 1);
      const k = Math.min(Math.max(currentKey(text) + step[1], 0), p.nKeys - 1);
      choose(t, { query: q, key: k });
    });
    text.root.querySelector(".lookers").addEventListener("toggle", () => showLookers(text));
  }
  function showCell(text) {
    const cell = text.root.querySelector(".cell");
    cell.textContent = text.found
      ? cellWords(text, state.query[text.t], currentKey(text))
      : "This head’s pattern is not in this page, only its thumbnail. Make the page again with --head to have it.";
    for (const part of all(".plane, .most, .lookers", text.root)) part.hidden = !text.found;
  }
  function showMost(text) {
    const { p, t, codes, root } = text;
    const from = state.mode === "from";
    const listed = from ? [...codes.keys()] : (p.at || p.rows.map((_, q) => q)).map((_, q) => q);
    const value = from ? (k) => codes[k] : (q) => text.byRow[q];
    const best = listed.filter((i) => value(i) > 0).sort((a, b) => value(b) - value(a) || a - b).slice(0, 8);
    root.querySelector(".most caption").textContent = from
      ? `${query(p, state.query[t])} looks at`
      : `${key(p, currentKey(text))} is looked at by`;
    root.querySelector(".most tbody").replaceChildren(...best.map((i) => {
      const line = document.createElement("tr");
      const name = document.createElement("th");
      name.scope = "row";
      name.append(Object.assign(document.createElement("bdi"), { textContent: from ? key(p, i) : query(p, i) }));
      line.append(name, Object.assign(document.createElement("td"), { textContent: about(value(i)) }));
      return line;
    }));
  }
  async function showLookers(text) {
    const box = text.root.querySelector(".lookers");
    if (!box.open) return;
    const { p, t } = text;
    const [q, k] = [state.query[t], currentKey(text)];
    const kept = Object.keys(p.patterns).map(Number);
    const codes = await Promise.all(kept.map(async (head) => [row(await pattern(p, head), p, q)[k], head]));
    const best = codes.filter(([code]) => code > 0).sort(([a, i], [b, j]) => b - a || i - j).slice(0, 10);
    const links = best.map(([code, head]) => {
      const link = Object.assign(document.createElement("a"), { href: `#head=${label(head)}`, textContent: label(head) });
      return [link, ` ${about(code)}`];
    });
    const of = `Of the ${kept.length} heads whose patterns are here, from ${query(p, q)} to ${key(p, k)}: `;
    box.querySelector("p").replaceChildren(of, ...links.flatMap((link, i) => (i ? [", ", ...link] : link)), best.length ? "." : "none.");
  }

  // ---- q, k and v
  async function vectorsOf(packed, n) {
    const codes = new Int8Array(await bytes(packed.data));
    const size = codes.length / n;
    return (pos) => Float64Array.from(codes.subarray(pos * size, (pos + 1) * size), (c) => c * packed.step);
  }
  async function showVectors() {
    if (!byId("vectors").open) return;
    const body = byId("vectors").querySelector("tbody");
    const text = texts[state.text];
    const { p, t } = text;
    const own = data.vectors[state.head];
    if (own === undefined || !text.found) {
      body.replaceChildren(line("Of this head they are not in this page."));
      return;
    }
    const asked = state.head;
    const [q, k, v] = await Promise.all([
      vectorsOf(p.q[asked], p.nRows), vectorsOf(p.k[own], p.nKeys), vectorsOf(p.v[own], p.nKeys),
    ]);
    if (asked !== state.head) return;
    const codes = row(text.found, p, state.query[t]);
    const order = [...codes.keys()].sort((a, b) => codes[b] - codes[a] || a - b);
    const keys = [...new Set([currentKey(text), ...order.filter((i) => codes[i] > 0)])].slice(0, SHOWN);
    const mine = q(state.query[t]);
    const rows = keys.map((i) => {
      const [theirs, score] = [k(i), (parts) => parts.reduce((a, b) => a + b, 0)];
      const product = theirs.map((x, d) => x * mine[d]);
      return { name: key(p, i), weight: about(codes[i]), score: `≈ ${fixed(score(product), 1)}`, parts: [theirs, product, v(i)] };
    });
    const largest = [0, 1, 2].map((c) => Math.max(...rows.flatMap((r) => [...r.parts[c]].map(Math.abs)), 1e-9));
    const top = line(`q of ${query(p, state.query[t])}`, [picture(mine, Math.max(...mine.map(Math.abs), 1e-9))]);
    body.replaceChildren(top, ...rows.map((r) => line(r.name, r.parts.map((part, c) => picture(part, largest[c])), r.weight, r.score)));
  }
  function line(name, pictures = [], ...words) {
    const made = document.createElement("tr");
    const head = Object.assign(document.createElement("th"), { scope: "row" });
    head.append(Object.assign(document.createElement("bdi"), { textContent: name }));
    made.append(head);
    for (const word of pictures.length === 1 ? ["", ""] : words) made.append(Object.assign(document.createElement("td"), { textContent: word }));
    for (const one of pictures) {
      const cell = document.createElement("td");
      cell.append(one);
      made.append(cell);
    }
    return made;
  }
  function picture(values, most) {
    const canvas = Object.assign(document.createElement("canvas"), { width: values.length, height: 1 });
    const drawn = new ImageData(values.length, 1);
    values.forEach((value, i) => {
      drawn.data.set(value < 0 ? [213, 94, 0] : colour, 4 * i);
      drawn.data[4 * i + 3] = Math.round((255 * Math.abs(value)) / most);
    });
    canvas.getContext("2d").putImageData(drawn, 0, 0);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${values.length} numbers up to ${fixed(most, 2)}`);
    return canvas;
  }

  // ---- start
  async function showText(text) {
    const asked = state.head;
    const found = await pattern(text.p, asked);
    if (asked !== state.head) return;
    text.found = found;
    text.codes = null;
    if (found) {
      const { p, t } = text;
      const own = row(found, p, state.query[t]);
      text.peak = own.indexOf(Math.max(...own));
      text.codes = own;
      if (state.mode === "to") {
        text.byRow = column(found, p, currentKey(text));
        text.codes = new Uint8Array(p.nKeys);
        if (p.at) p.at.forEach((k, q) => (text.codes[k] = text.byRow[q]));
      }
      if (text.drawn !== asked) draw(text, found);
      markCell(text, currentKey(text));
      showMost(text);
      showLookers(text);
    }
    showCell(text);
    shade(text);
  }
  async function show() {
    for (const element of all('[data-show="label"]')) element.textContent = label(state.head);
    document.querySelector('[data-show="where"]').textContent = words(state.head);
    thumbs.forEach((thumb, index) => thumb.toggleAttribute("aria-current", index === state.head));
    focusable(state.head);
    byId("mode").elements.mode.value = state.mode;
    await Promise.all(texts.map(showText));
    await showVectors();
    document.documentElement.dataset.shown = fragment(); // for those who wait
  }
  document.documentElement.classList.add("js");
  buildGrid();
  texts.forEach(buildStrip);
  texts.forEach(buildPlane);
  byId("mode").addEventListener("change", (event) => {
    state.mode = event.target.value;
    choose(state.text, {});
  });
  byId("vectors").addEventListener("toggle", showVectors);
  for (const form of all("form")) form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const name = new URLSearchParams(link.getAttribute("href").slice(1)).get("head");
    if (name in indexOf) open(indexOf[name]);
    byId("head").scrollIntoView();
    byId("head-title").focus({ preventScroll: true });
  });
  addEventListener("hashchange", () => {
    read();
    show();
  });
  if (!framed) read();
  show();
  for (const text of texts) if (text.p.at) reveal(text, text.p.at[state.query[text.t]]);
})();
