// Links what a browser shows: the step, the rank and the stage of the address are marked in every figure.
"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const make = (tag, text = "") => Object.assign(document.createElement(tag), { textContent: text });
  const places = Object.entries(data.places);
  let doc = null;
  if (places.length) {
    const item = { docid: "page", roots: data.places, root_ids: places.map(([root]) => root) };
    await Bokeh.embed.embed_items({ page: data.document }, [item]);
    doc = Bokeh.documents[0];
  }
  const model = (name) => doc && doc.get_model_by_name(name);
  const plots = doc ? doc.roots() : [];
  const named = Object.fromEntries(plots.map((plot) => [plot.name, plot]));
  const timelines = new Map(data.timelines.map((one) => [one.step, one]));
  let said = {};
  let shown = null;
  let lit = "";

  // --- the address ----------------------------------------------------------------------------------------------

  const read = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const go = (changes) => {
    const next = { ...said, panel: undefined, figure: undefined, ...changes };
    const kept = Object.entries(next).filter(([, value]) => value !== undefined && value !== "" && value !== null);
    const hash = "#" + new URLSearchParams(kept);
    if (hash === location.hash) follow();
    else location.hash = hash;
  };
  const follow = () => {
    said = read();
    const step = said.step === undefined ? NaN : Number(said.step);
    const range = model("steps");
    if (range && Number.isFinite(step) && (step < range.start || step > range.end)) wholeRun();
    inSight.forEach(mark);
    showTimeline(timelines.has(step) ? step : shown ?? data.first);
    say(step);
    const sampled = [...document.querySelectorAll("details[id^=samples-]")].filter((one) => Number(one.id.slice(8)) <= step).pop();
    if (sampled) sampled.open = true;
    document.querySelectorAll("figure.here").forEach((one) => one.classList.remove("here"));
    const figure = said.figure && by("figure-" + said.figure);
    if (figure) figure.classList.add("here");
    const target = figure || (said.panel && by("panel-" + said.panel));
    if (target) target.scrollIntoView({ block: figure && figure.offsetHeight < innerHeight * 0.7 ? "center" : "start" });
  };
  // Marks the chosen step and rank in a plot. Those out of sight are marked when they come into it: to draw all takes long.
  const inSight = new Set();
  const mark = (plot) => {
    const line = (name) => plot.center.find((one) => one.name === name);
    put(line("here"), said.step === undefined ? NaN : Number(said.step));
    const row = line("row");
    const rank = row && data.ranks.find((one) => one.rank === Number(said.rank) && (!said.role || one.role === said.role));
    put(row, rank && said.rank !== undefined ? sourceOf(plot).tags.indexOf(rank.name) : NaN);
  };
  const put = (line, at) => {
    const visible = Number.isFinite(at) && at >= 0;
    if (line && (visible !== line.visible || (visible && at !== line.location))) line.setv(visible ? { location: at, visible } : { visible });
  };
  const say = (step) => {
    const parts = [];
    if (Number.isFinite(step)) parts.push(`step ${step}`);
    if (said.rank !== undefined) parts.push(`${said.role && said.role !== "trainer" ? said.role : "rank"} ${said.rank}`);
    if (said.stage) parts.push(said.stage);
    if (said.span) parts.push(`span ${said.span}`);
    const one = timelines.get(step);
    if (one) parts.push(`attempt ${one.attempt}`, `trace ${one.trace}`);
    else if (Number.isFinite(step) && timelines.size) parts.push("its spans are not in this page");
    by("selected").hidden = !parts.length;
    by("selected").firstElementChild.textContent = parts.join(" · ");
    const link = by("selected").querySelector("a");
    link.hidden = !one || !data.traces;
    if (!link.hidden) link.href = data.traces.replace("{trace_id}", one.trace);
  };

  // --- the timeline ---------------------------------------------------------------------------------------------

  const time = (us) => (us < 1000 ? `${us} us` : us < 1e6 ? `${(us / 1e3).toPrecision(3)} ms` : `${(us / 1e6).toPrecision(3)} s`);
  const colour = (label) => data.colours[label] || "#999999";
  // Where each level of a lane begins: of one with nothing but requests, of which many are at once, a third as high.
  const heights = (one, lane) => {
    const levels = 1 + lane.level.reduce((most, level) => Math.max(most, level), 0);
    const is_thin = Array(levels).fill(true);
    lane.level.forEach((level, at) => { is_thin[level] &&= one.texts[lane.label[at]].startsWith("request"); });
    return is_thin.reduce((tops, thin) => [...tops, tops[tops.length - 1] + (thin ? 0.35 : 1)], [0]);
  };
  const showTimeline = (step) => {
    const one = timelines.get(step);
    const plot = named.timeline;
    if (!one || !plot || (step === shown && lit === (said.stage ?? ""))) return;
    shown = step;
    lit = said.stage ?? "";
    const isLit = (label) => !lit || label === lit || label.startsWith(lit + " ") || label.startsWith(lit + ".");
    const empty = () => ({ left: [], right: [], bottom: [], top: [], colour: [], alpha: [], label: [], time: [], lane: [], id: [] });
    const drawn = { boxes: empty(), waits: empty() };
    const ticks = [];
    const names = new Map();
    const tops = [];
    const [per, unit] = one.time_s >= 10 ? [1e6, "s"] : [1e3, "ms"];
    let depth = 0;
    let last = 0;
    for (const lane of one.lanes) {
      const high = heights(one, lane);
      const levels = high[high.length - 1];
      tops.push(high.map((top) => -depth - top));
      for (let at = 0; at < lane.begin.length; at++) {
        const boxes = lane.wait[at] ? drawn.waits : drawn.boxes;
        boxes.left.push(lane.begin[at] / per);
        boxes.right.push(lane.end[at] / per);
        boxes.top.push(-depth - high[lane.level[at]] - 0.02);
        boxes.bottom.push(-depth - high[lane.level[at] + 1] + 0.02);
        const label = one.texts[lane.label[at]];
        boxes.colour.push(colour(label));
        boxes.alpha.push(isLit(label) ? 1 : 0.2);
        boxes.label.push(label);
        boxes.time.push(time(lane.end[at] - lane.begin[at]));
        boxes.lane.push(lane.name);
        boxes.id.push(lane.id[at]);
        last = Math.max(last, lane.end[at]);
      }
      const middle = -(depth + levels / 2);
      ticks.push(middle);
      names.set(middle, lane.name);
      depth += levels + 0.6;
    }
    for (const [name, boxes] of Object.entries(drawn)) model(name).data = boxes;
    const end = Math.max(last, one.time_s * 1e6) / per;
    model("arrows").data = arrows(one, tops, per, end);
    model("lanes").setv({ start: -depth, end: 0.4 });
    model("time").setv({ start: 0, end });
    model("timeline-x").axis_label = `time since the step began, ${unit}`;
    model("lane-ticks").ticks = ticks.reverse();
    model("lane-axis").major_label_overrides = names;
    plot.height = Math.min(1200, Math.max(180, 60 + 16 * depth));
    by("figure-timeline").querySelector("h3").textContent = `Step ${step} took ${time(one.time_s * 1e6)}`;
    document.querySelectorAll("#steps-shown button").forEach((button) => {
      button.setAttribute("aria-pressed", String(Number(button.value) === step));
    });
    legend(one);
    refresh("timeline");
  };
  // From the end of a box, or the left edge above the lane, to another one, or the right edge.
  const arrows = (one, tops, per, last) => {
    const drawn = { x0: [], y0: [], x1: [], y1: [], label: [] };
    const middle = ([lane, at]) => (tops[lane][one.lanes[lane].level[at]] + tops[lane][one.lanes[lane].level[at] + 1]) / 2;
    const above = ([lane]) => tops[lane][0] + 0.3;
    for (const { begin, end, taken, label } of one.arrows) {
      drawn.x0.push(begin ? one.lanes[begin[0]].end[begin[1]] / per : 0);
      drawn.y0.push(begin ? middle(begin) : above(end));
      drawn.x1.push(end ? one.lanes[end[0]][taken ? "end" : "begin"][end[1]] / per : last);
      drawn.y1.push(end ? middle(end) : above(begin));
      drawn.label.push(label);
    }
    return drawn;
  };
  const legend = (one) => by("figure-timeline").querySelector(".legend").replaceChildren(...one.texts.map((label) => {
    const item = make("li");
    item.append(make("i"), label);
    item.firstChild.style.background = colour(label);
    item.addEventListener("click", () => go({ step: one.step, stage: label === said.stage ? undefined : label, span: undefined }));
    return item;
  }));
  const offer = () => by("steps-shown")?.replaceChildren(...[...timelines.values()].sort((one, other) => one.step - other.step).map((one) => {
    const button = Object.assign(make("button", `${one.step} (${one.why})`), { type: "button", value: one.step });
    button.addEventListener("click", () => go({ step: one.step, stage: undefined, span: undefined }));
    return button;
  }));
  offer();
  // A live page has other steps, ranks and numbers now.
  document.addEventListener("page-data", ({ detail }) => {
    Object.assign(data, detail.data);
    for (const one of detail.timelines) timelines.set(one.step, one);
    for (const step of [...timelines.keys()]) if (!data.kept.includes(step)) timelines.delete(step);
    if (detail.timelines.length || detail.data.kept) {
      offer();
      const step = timelines.has(shown) ? shown : data.first;
      shown = null;
      showTimeline(step);
    }
    inSight.forEach(mark);
    document.querySelectorAll("figure .numbers").forEach((one) => refresh(one.closest("figure").id.slice("figure-".length)));
  });

  // --- clicks ---------------------------------------------------------------------------------------------------

  const sourceOf = (plot) => plot.renderers.map((one) => one.data_source).find((one) => one.tags.length);
  const tapped = (plot, event) => {
    if (plot.name === "timeline") {
      const hit = (boxes) => boxes.left.findIndex((left, at) => left <= event.x && event.x <= boxes.right[at]
        && boxes.bottom[at] <= event.y && event.y <= boxes.top[at]);
      const boxes = [model("boxes").data, model("waits").data].find((one) => hit(one) >= 0);
      if (!boxes) return;
      const at = hit(boxes);
      const rank = data.ranks.find((one) => one.name === boxes.lane[at]);
      go({ step: shown, rank: rank?.rank, role: rank?.role, stage: boxes.label[at], span: boxes.id[at] });
    } else if (plot.name.startsWith("rank-")) {
      const name = sourceOf(plot).tags[Math.round(event.y)];
      const rank = data.ranks.find((one) => one.name === name);
      go({ step: Math.round(event.x), rank: rank?.rank, role: rank?.role, stage: undefined, span: undefined });
    } else if (plot.x_range === model("steps")) {
      go({ step: nearest(plot, event.x), stage: undefined, span: undefined });
      if (plot.name === "stages" && timelines.has(Number(read().step))) by("figure-timeline").scrollIntoView({ block: "nearest" });
    }
  };
  // Of the steps that a bar stands for, the one whose spans are here.
  const nearest = (plot, x) => {
    const columns = plot.name === "stages" ? sourceOf(plot).data : null;
    const bar = columns ? Array.from(columns.left).findIndex((left, at) => left <= x && x <= columns.right[at]) : -1;
    const inside = bar < 0 ? [] : [...timelines.keys()].filter((step) => columns.left[bar] <= step && step <= columns.right[bar]);
    return inside[0] ?? Math.round(x);
  };
  for (const plot of plots) plot.on_event("tap", (event) => tapped(plot, event));
  const wholeRun = () => {
    const range = model("steps");
    if (range) range.setv({ start: range.bounds[0], end: range.bounds[1] });
  };
  by("whole").addEventListener("click", wholeRun);
  by("selected").querySelector("button").addEventListener("click", () => {
    getSelection().selectAllChildren(by("selected").firstElementChild);
    document.execCommand("copy"); // without asking for a permission, as navigator.clipboard may
  });

  // --- words and keys -------------------------------------------------------------------------------------------

  const input = document.querySelector("input[name=to]");
  const search = () => {
    const words = input.value.trim().toLowerCase();
    const number = words.match(/^(?:step\s*)?(\d+)$/);
    const rank = data.ranks.find((one) => one.name.toLowerCase() === words || `rank ${one.rank}` === words);
    const stage = !rank && !number && Object.keys(data.colours).find((one) => one.toLowerCase().includes(words));
    input.setCustomValidity(words && !number && !rank && !stage ? "nothing of this name" : "");
    if (!words || !input.checkValidity()) return;
    if (number) go({ step: Number(number[1]) });
    else if (rank) go({ rank: rank.rank, role: rank.role, panel: by("panel-ranks") ? "ranks" : undefined });
    else go({ stage, panel: "steps" });
  };
  input.form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  input.addEventListener("input", () => input.setCustomValidity(""));
  const stepBy = (by) => {
    const range = model("steps");
    if (!range) return;
    const now = said.step === undefined ? data.first ?? Math.ceil(range.bounds[0]) : Number(said.step);
    go({ step: Math.min(Math.floor(range.bounds[1]), Math.max(Math.ceil(range.bounds[0]), now + by)) });
  };
  const panelBy = (by_) => {
    const tops = data.panels.map((name) => by("panel-" + name).getBoundingClientRect().top);
    const now = tops.filter((top) => top < 80).length - 1;
    const next = data.panels[Math.min(data.panels.length - 1, Math.max(0, now + by_))];
    by("panel-" + next).scrollIntoView({ block: "start" });
  };
  const keys = {
    ArrowLeft: () => stepBy(-1), ArrowRight: () => stepBy(1), j: () => panelBy(1), k: () => panelBy(-1), 0: wholeRun,
    "/": () => input.focus(), Escape: () => { input.blur(); location.hash = ""; },
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target === input && event.key !== "Escape";
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  // --- numbers as tables ----------------------------------------------------------------------------------------

  const cells = (value) => (Array.isArray(value) || ArrayBuffer.isView(value) ? Array.from(value) : [value]);
  const table = (name) => {
    const box = Object.assign(make("div"), { className: "numbers" });
    const plot = named[name];
    for (const source of new Set(plot.renderers.map((one) => one.data_source).filter((one) => one.tags.length))) {
      let columns = [...Object.entries(source.data)];
      if (source.data.image) {
        const image = source.data.image[0];
        const wide = image.shape[1];
        columns = source.tags.map((tag, row) => [tag, Array.from(image).slice(row * wide, (row + 1) * wide)]).reverse();
      } else {
        const heads = (key) => (/^part\d+$/.test(key) ? source.tags[Number(key.slice(4))] : key === "value" ? source.tags[0] : key);
        columns = columns.filter(([key]) => !/^(low\d|high\d|zero|bottom|top|colour|alpha|row$)/.test(key)).map(([key, of]) => [heads(key), of]);
      }
      const grid = make("table");
      const add = (row, tag, text) => row.append(Object.assign(make(tag, text), { className: "number" }));
      const head = grid.createTHead().insertRow();
      columns.forEach(([key]) => add(head, "th", key));
      const rows = columns.map(([, of]) => cells(of));
      rows[0].forEach((_, at) => {
        const row = grid.insertRow();
        for (const { [at]: value } of rows) add(row, "td", typeof value === "number" ? Number(value.toPrecision(6)) : value);
      });
      box.append(grid);
    }
    return box;
  };
  const refresh = (name) => {
    const old = by("figure-" + name).querySelector(".numbers");
    if (old) old.replaceWith(table(name));
  };
  document.querySelectorAll("figcaption button.table").forEach((button) => {
    const figure = button.closest("figure");
    button.addEventListener("click", () => {
      const old = figure.querySelector(".numbers");
      if (old) old.remove();
      else figure.append(table(figure.id.slice("figure-".length)));
    });
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
  const observer = new IntersectionObserver((seen) => {
    for (const one of seen) {
      const plot = named[one.target.id.slice("plot-".length)];
      if (!one.isIntersecting) inSight.delete(plot);
      else if (inSight.add(plot)) mark(plot);
    }
  });
  document.querySelectorAll(".plot").forEach((one) => observer.observe(one));
  addEventListener("hashchange", follow);
  follow();
  document.documentElement.dataset.ready = "true";
})();
