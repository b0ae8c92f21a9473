(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- the prompts' tokens stay, their colours are those of a line
  function colours(figure) {
    const lines = JSON.parse(figure.dataset.lines || "[]");
    let shown = 0;
    return (name) => {
      const line = Math.max(lines.indexOf(name), 0);
      if (line === shown) return;
      shown = line;
      for (const element of all('[data-show="line"]', figure)) element.textContent = lines[line];
      for (const prompt of all("[data-codes]", figure)) {
        const codes = Uint8Array.from(atob(prompt.dataset.codes), (c) => c.charCodeAt(0));
        const tokens = all(".strip .tok", prompt);
        const row = codes.subarray(line * tokens.length, (line + 1) * tokens.length);
        const sums = { target: 0, foil: 0 };
        tokens.forEach((token, i) => {
          const share = (row[i] / 255) ** 2;
          token.style.setProperty("--a", (row[i] / 255).toFixed(3));
          token.title = `≈ ${share.toFixed(3)}`;
          const role = ["target", "foil"].find((name) => token.closest(`.${name}`));
          if (role) sums[role] += share;
        });
        for (const sum of all("[data-sum]", prompt)) sum.textContent = `≈ ${sums[sum.dataset.sum].toFixed(2)}`;
      }
    };
  }

  // ---- a list of names of which one can be chosen
  function buttons(figure, press) {
    for (const choice of all(".choice", figure)) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...choice.childNodes);
      choice.append(button);
      button.addEventListener("click", () => press(choice.dataset.line));
    }
  }
  function pressed(figure, line) {
    for (const b of all(".choice button", figure)) b.setAttribute("aria-pressed", b.parentElement.dataset.line === line);
  }

  // ---- prompts without a figure: the head whose attention colours them, in the fragment
  function prompts(figure) {
    const view = figure.dataset.view;
    const lines = JSON.parse(figure.dataset.lines);
    const colour = colours(figure);
    let current = lines[0];
    let written = null; // the fragment of which the page is still to hear
    function show(line) {
      current = line;
      colour(line);
      pressed(figure, line);
    }
    function read() {
      const given = new URLSearchParams(location.hash.slice(1));
      if (given.get("prompts") !== view) return location.hash ? current : lines[0]; // of another part of the page
      return lines.includes(given.get("line")) ? given.get("line") : lines[0];
    }
    buttons(figure, (line) => {
      show(line);
      location.hash = `prompts=${view}&line=${encodeURIComponent(line)}`;
      written = location.hash;
    });
    function open() {
      if (new URLSearchParams(location.hash.slice(1)).get("prompts") !== view || location.hash === written) return;
      figure.querySelector("details.asked").open = true;
      figure.scrollIntoView();
    }
    addEventListener("hashchange", () => {
      show(read());
      open();
      written = null;
    });
    show(read());
    open();
  }

  function linked(figure) {
    const view = figure.dataset.view;
    const names = figure.dataset.names.split(",");
    const places = figure.dataset.places.split(",").map(Number);
    const colour = colours(figure);
    const stack = figure.querySelector(".stack");
    const axis = figure.querySelector(".axis");
    const every = figure.querySelector(".every");
    const marked = all("[data-line]", figure);
    const lines = all("g.line", figure).map((line) => [line.querySelector(".here"), line.dataset.heights.split(",")]);
    const rows = all(".values tr:not(.part)", figure).map((row) => [...row.cells].slice(1));
    const known = new Set(all(".choice", figure).map((choice) => choice.dataset.line));
    const behind = all("details.asked", figure);
    const start = { at: 0, line: null, open: false };
    let current = start;

    // ---- state: in the fragment, so that a link points at a finding
    function read() {
      const given = new URLSearchParams(location.hash.slice(1));
      if (given.get("linked") !== view) return location.hash ? current : start; // of another part of the page
      const at = names.indexOf(given.get("index"));
      const line = given.get("line");
      return { at: Math.max(at, 0), line: known.has(line) ? line : null, open: at >= 0 };
    }
    let resting;
    let written = null; // the fragment of which the page is still to hear
    function write() {
      const line = current.line === null ? "" : `&line=${encodeURIComponent(current.line)}`;
      const before = location.hash;
      location.hash = `linked=${view}&index=${encodeURIComponent(names[current.at])}${line}`;
      if (location.hash !== before) written = location.hash;
    }
    function choose(change) {
      clearTimeout(resting);
      show({ ...current, ...change, open: true });
      write();
    }
    // keys that are held down would fill the history: only where they come to rest is kept
    function move(at) {
      clearTimeout(resting);
      show({ ...current, at, open: true });
      resting = setTimeout(write, 200);
    }

    // ---- what is at an x: in every panel, and in the table
    let pointed = null;
    function point(at) {
      if (at !== pointed) mark(at);
    }
    function mark(at) {
      pointed = at;
      stack.style.setProperty("--at", `${places[at] / 10}%`);
      for (const [here, heights] of lines) here.setAttribute("d", heights[at] && `M${places[at]} ${heights[at]}h0`);
      for (const cells of rows) cells.forEach((cell, i) => cell.classList.toggle("off", i !== at && !every.checked));
      axis.setAttribute("aria-valuenow", at);
      axis.setAttribute("aria-valuetext", `${axis.dataset.label} ${names[at]}`);
    }
    function setApart(line) {
      const beside = new Set(marked.filter((m) => m.dataset.line === line).map((m) => m.dataset.by));
      for (const m of marked) m.classList.toggle("dim", beside.has(m.dataset.by) && m.dataset.line !== line);
      pressed(figure, line);
    }
    function show(state) {
      current = state;
      mark(state.at);
      setApart(state.line);
      colour(state.line);
      behind.forEach((details, i) => {
        details.hidden = i !== state.at;
        details.open = i === state.at && state.open;
      });
    }

    // ---- pointer and keys
    function nearest(event) {
      const box = axis.getBoundingClientRect();
      const away = places.map((place) => Math.abs(place / 1000 - (event.clientX - box.left) / box.width));
      return away.indexOf(Math.min(...away));
    }
    const inside = (event) => event.target.closest(".area, .axis");
    stack.addEventListener("pointermove", (event) => point(inside(event) ? nearest(event) : current.at));
    stack.addEventListener("pointerleave", () => point(current.at));
    stack.addEventListener("click", (event) => {
      if (!inside(event)) return;
      axis.focus({ preventScroll: true });
      choose({ at: nearest(event) });
    });
    axis.addEventListener("keydown", (event) => {
      const last = names.length - 1;
      const to = { ArrowRight: current.at + 1, ArrowUp: current.at + 1, ArrowLeft: current.at - 1,
        ArrowDown: current.at - 1, Home: 0, End: last, Enter: current.at, " ": current.at }[event.key];
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(Math.min(Math.max(to, 0), last));
    });
    all(".values thead a", figure).forEach((anchor, at) => anchor.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      choose({ at });
    }));
    every.addEventListener("change", () => mark(current.at));
    addEventListener("hashchange", () => {
      const own = location.hash === written;
      written = null;
      if (own) return;
      clearTimeout(resting);
      show(read());
    });

    // ---- start
    const bounds = { role: "slider", tabindex: 0, "aria-label": axis.dataset.label, "aria-valuemin": 0, "aria-valuemax": names.length - 1 };
    for (const [name, value] of Object.entries(bounds)) axis.setAttribute(name, value);
    buttons(figure, (line) => choose({ line: current.line === line ? null : line }));
    for (const place of all(".place", figure)) place.removeAttribute("id"); // only for pages without script
    show(read());
    if (current.open) {
      figure.scrollIntoView();
      axis.focus({ preventScroll: true });
    }
  }

  document.documentElement.classList.add("js");
  all("figure.linked:not(.prompts)").forEach(linked);
  all("figure.prompts").forEach(prompts);
})();
