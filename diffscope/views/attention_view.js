// The attention of one head, drawn on canvases from one buffer: as maps, or as lines between tokens. Hosts call
// mount(element, buffer, emit); what it returns takes further buffers (update) and is told to go (leave). Heads that the page holds
// are shown at once (held_heads.js).

const EXACT = 256; // tokens a side of the windows whose values are asked for token by token
const LEAST = 8; // tokens a side of the smallest window
const PAUSE = 250; // milliseconds after the last change of what is remembered
const HINT = "Point at a cell to read it, click to lock it. Ctrl (⌘) and the wheel zoom, after a click the wheel alone; press arrow keys";
const HELP = `Point at a cell to read it, click to lock its query and key, shift-click to lock more; drag to move. The wheel zooms
with Ctrl or ⌘, and without once the view was clicked; else it scrolls the page.
Keys:`;
const MORE_KEYS = "+ and − zoom, escape unlocks and shows the whole.";
// What arrow keys do: a host, or the page, has other heads; a page of one head has its cells, which they read.
const HEADS = { hint: "for other heads", help: "arrows choose the head beside this one and the layer above or below" };
const CELLS = { hint: "to read its neighbours", help: "arrows read the queries above and below, and the keys on either side" };
const SCALE_HELP = `How a weight becomes a colour. Linear: in proportion; root: by its square root, which makes small weights look larger; log:
four decades; share of row: by the root of |x| / Σ|x|. All maps share one scale. What is read at the pointer are weights in any case.`;
const ROBUST_HELP =
  "End the colours where one value in two hundred, apart from those of the first key, goes on; those have the strongest colour";
const PARTS_HELP = "Show the maps that D is made of, below it";
const A2_HELP = "Show A₂ before it is scaled by λ, too";
const SINK_HELP = "Show the first key, which often takes most of a row; of a long prompt the first bin";

class View {
  constructor(host, buffer, emit) {
    this.host = host;
    this.emit = emit || (() => {});
    this.alone = !emit;
    this.arrows = emit || HELD.size > 1 ? HEADS : CELLS;
    this.options = { scale: "raw", robust: true, sink: true, a2: false };
    this.mode = "maps";
    this.parts = null; // whether the maps that D is made of are shown; null is the usual: not in a group, where D is compared
    this.heads = null; // whose lines are drawn; null for that of the maps
    this.wanted = null; // the head that was asked for and that the host has not sent yet
    this.locked = { rows: new Set(), columns: new Set() };
    this.pointer = null;
    this.resized = new ResizeObserver(() => this.layout());
    this.marked = ({ detail }) => this.respan(detail);
    this.chosen = ({ detail }) => detail.from !== this && (detail.awaited = this.goTo(detail));
    this.drawings = { maps: new MapPanels(this), lines: new HeadLines(this) };
    this.build();
    this.update(buffer);
    window.addEventListener(CHOSEN, this.chosen);
    window.addEventListener(MARKED, this.marked);
    this.resized.observe(this.host);
  }

  leave() {
    VIEWS.delete(this);
    window.removeEventListener(CHOSEN, this.chosen);
    window.removeEventListener(MARKED, this.marked);
    clearTimeout(this.asking);
    clearTimeout(this.waiting);
    clearTimeout(this.fading);
    clearTimeout(this.remembering);
    this.resized.disconnect();
    this.host.replaceChildren();
    for (const other of grouped(this)) if (other !== this) other.settle(true);
  }

  build() {
    this.root = element("div", TURNING, { tabindex: "0", role: "application", class: "diffscope-view" });
    const bar = element("div", {}, { class: "bar" });
    this.heading = element("strong", {}, { title: `${HELP} ${this.arrows.help}, ${MORE_KEYS}` });
    this.range = element("span", {}, { class: "faint" });
    const scales = Object.entries(SCALES).map(([name, { label }]) => [name, label]);
    const modes = [
      ["maps", "Maps", "Draw the maps, queries down and keys across"],
      ["lines", "Lines", "Draw lines between tokens, queries left and keys right, of any heads of the layer"],
    ];
    this.controls = {
      mode: pair("Draw as", modes, (mode) => this.choose({ mode })),
      scale: choice("Scale", scales, SCALE_HELP, (scale) => this.choose({ scale })),
      robust: tick("Robust range", ROBUST_HELP, (robust) => this.choose({ robust })),
      sink: tick("First key", SINK_HELP, (sink) => this.choose({ sink })),
      parts: tick("A₁ and λ·A₂", PARTS_HELP, (parts) => this.choose({ parts })),
      a2: tick("A₂", A2_HELP, (a2) => this.choose({ a2 })),
    };
    const { mode, scale, robust, sink, parts, a2 } = this.controls;
    this.tools = element("span", {});
    const zooms = element("span", {}, { class: "line" });
    zooms.append(
      button("−", "Zoom out (key −)", () => this.everyWhere((view) => view.zoom(1.5)), "Zoom out"),
      button("+", "Zoom in (key +)", () => this.everyWhere((view) => view.zoom(1 / 1.5)), "Zoom in"),
      button("⤢", "Whole map (double click)", () => this.everyWhere((view) => view.whole()), "Whole map"),
    );
    const ticks = element("span", {}, { class: "line ticks" });
    ticks.append(robust.box, sink.box, parts.box, a2.box);
    this.tools.append(mode.box, scale.box, zooms, ticks);
    this.above = bar;
    this.above.append(this.heading);
    this.below = element("div", { margin: "6px 0 0" }, { class: "bar" });
    this.place = element("div", {});
    this.legend = element("div", { marginTop: "4px", opacity: 0.85 }, { class: "bar" });
    this.foot = element("div", {}, { class: "foot" });
    this.readout = element("div", {}, { class: "readout", "aria-live": "polite" });
    this.foot.append(this.readout);
    this.prompt = element("p", {}, { class: "prompt" });
    this.sentence = element("p", {}, { class: "sentence" });
    this.root.append(element("style", {}, {}, STYLE), this.prompt, this.sentence, bar, this.place, this.below, this.legend, this.foot);
    this.host.replaceChildren(this.root);
    this.root.addEventListener("keydown", (event) => this.key(event));
    whenTurned(this.root, () => this.paint());
  }

  get drawing() {
    return this.drawings[this.mode];
  }

  get width() {
    return this.host.clientWidth;
  }

  // What the host sends. A head that was left meanwhile has to wait: it is shown if the host sends no other.
  update(buffer) {
    const data = parse(buffer);
    const { wanted } = this;
    const same = wanted && wanted.layer === data.layer && wanted.head === data.head;
    const left = wanted ? wanted.until - performance.now() : 0;
    const turn = () => {
      this.wanted = null;
      this.turn(data);
    };
    clearTimeout(this.waiting);
    if (wanted && !same && wanted.prompt === data.prompt && left > 0) this.waiting = setTimeout(turn, left);
    else turn();
  }

  // Another head, or the same one at another resolution; the window and the locks stay as long as the prompt is the same.
  turn(data) {
    const before = this.data;
    this.fade(false);
    this.data = data;
    VIEWS.add(this); // the others of its group see it from now on
    const { title, panels, prompt } = this.data;
    if (!before || before.prompt !== prompt || before.text !== data.text) this.begin(before ? null : this.data.state);
    this.root.setAttribute("aria-label", `${title}: ${panels.map((panel) => panel.title).join(", ")}`);
    Object.values(this.drawings).forEach((drawing) => drawing.rebuild());
    this.sentence.replaceChildren(...data.sentence.flatMap(explained));
    if (this.alone) this.writePrompt();
    this.show();
    this.settle(true);
  }

  // The prompt of a page of its own, its spans underlined; of cross-attention the queries, and below them the keys.
  writePrompt() {
    const { tokens, spans, keyTokens, keySpans } = this.data;
    if (keyTokens === tokens) return this.prompt.replaceChildren(...this.underlined(tokens, spans));
    const keys = this.underlined(keyTokens, keySpans);
    this.prompt.replaceChildren("queries: ", ...this.underlined(tokens, spans), element("br"), "keys: ", ...keys);
  }

  underlined(tokens, spans) {
    const colours = new Map();
    for (const { colour, ranges } of spans)
      for (const [start, stop] of ranges) for (let at = start; at < stop; at++) colours.set(at, colour);
    const style = (at) => (colours.has(at) ? { borderBottom: `2px solid ${onPage(colours.get(at), isDark(this.root))}` } : {});
    return tokens.map((text, at) => element("span", style(at), {}, text));
  }

  // Shows a head if the page holds it, else fades what is shown until the host sends it; returns whether it has to be awaited.
  goTo({ layer, head }) {
    const { prompt } = this.data;
    const buffer = HELD.get(placeOfHead(prompt, layer, head));
    const shown = layer === this.data.layer && head === this.data.head;
    this.wanted = { prompt, layer, head, until: performance.now() + PATIENCE };
    if (shown) this.fade(false);
    else if (buffer) this.turn(parse(buffer));
    else this.fade(true);
    return !shown && !buffer;
  }

  // Other spans of the prompt: drawn at once; the sentence, which is of those before, is faded until the host has measured them.
  respan({ prompt, spans, measured }) {
    if (prompt !== this.data.prompt) return;
    this.data = { ...this.data, spans, keySpans: spans };
    this.sentence.classList.toggle("stale", !measured);
    clearTimeout(this.fading);
    this.fading = setTimeout(() => this.fade(false), PATIENCE); // a host that has measured the same spans before sends nothing
    this.paint();
  }

  // What is not of the head that was asked for is faded, as long as one may expect that it comes.
  fade(faded) {
    clearTimeout(this.fading);
    this.root.classList.toggle("stale", faded);
    if (!faded) this.sentence.classList.remove("stale");
    if (faded) this.fading = setTimeout(() => this.fade(false), PATIENCE);
  }

  // The head so many layers and heads further: at once if the page holds it, and the host follows.
  move(down, right) {
    const from = this.wanted ?? this.data;
    const next = neighbour(this.data.grid, from, down, right);
    if (next.layer === from.layer && next.head === from.head) return;
    announce({ ...next, from: this, awaited: this.goTo(next) });
    this.emit("head", next);
  }

  // How a prompt is looked at first: as the state says, else as the views of its group do.
  begin(state) {
    const [, peer] = grouped(this);
    const [, neighbour] = linked(this);
    for (const name of Object.keys(this.options)) this.options[name] = state?.[name] ?? peer?.options[name] ?? this.options[name];
    this.mode = state?.mode ?? peer?.mode ?? this.mode;
    this.parts = state?.parts ?? peer?.parts ?? this.parts;
    this.heads = state?.heads ?? this.heads;
    this.window = this.within(state?.window ?? neighbour?.window ?? { top: 0, left: 0, size: this.longest });
    const { rows, columns } = state?.locked ?? neighbour?.locked ?? { rows: [], columns: [] };
    this.locked = { rows: new Set(rows), columns: new Set(columns) };
    this.pointer = null;
    this.remembered ??= JSON.stringify(this.state());
    this.remember();
    this.ask();
  }

  named({ name, colour }) {
    const line = element("span", {}, { class: "line" });
    line.append(element("span", { width: "10px", height: "10px", background: onPage(colour, this.dark) }), name);
    return line;
  }

  // What the controls say, and the drawing that is chosen.
  show() {
    for (const name of ["scale", "robust", "sink", "a2"]) this.controls[name].show(this.options[name]);
    this.controls.parts.show(this.showsParts);
    this.controls.mode.show(this.mode);
    if (this.place.firstChild !== this.drawing.box) this.place.replaceChildren(this.drawing.box);
  }

  // What is chosen is of the whole group.
  choose({ mode = this.mode, parts = this.parts, ...options }) {
    for (const view of grouped(this)) {
      Object.assign(view, { mode, parts });
      Object.assign(view.options, options);
      view.drawings.maps.rebuild();
      view.show();
      view.remember();
      view.ask();
    }
    this.settle(true);
  }

  get showsParts() {
    return this.parts ?? !this.data.group;
  }

  // The maps that are drawn: A₂ only if it is asked for.
  get panels() {
    const { panels } = this.data;
    return this.showsParts ? panels.filter(({ name }) => name !== "A2" || this.options.a2) : panels.slice(-1);
  }

  // Does the same with all views of the group; of those that are looked at together one passes it on.
  everyWhere(act) {
    const done = new Set();
    for (const view of grouped(this)) {
      if (done.has(view)) continue;
      for (const other of linked(view)) done.add(other);
      act(view);
    }
  }

  // The controls stand beside the heading; of a group once, below the maps of its first view, so that all maps begin at one height.
  placeControls() {
    const group = grouped(this);
    const { group: name } = this.data;
    const home = name ? this.below : this.above;
    if (this.tools.parentNode !== home) home.append(this.tools);
    this.tools.style.display = this.leads ? "contents" : "none";
    const has = (part) => group.some(({ data }) => data.panels.some((panel) => panel.name === part));
    this.controls.parts.box.style.display = name && has("lambda_A2") ? "" : "none";
    this.controls.a2.box.style.display = this.showsParts && has("A2") ? "" : "none";
  }

  get leads() {
    return leader(this) === this;
  }

  chooseHeads(heads) {
    this.heads = heads;
    this.drawings.lines.paint();
    this.read();
    this.remember();
  }

  // The end of the colours: the largest that any view of the group would end at.
  settle(all = false) {
    const group = grouped(this);
    for (const view of group) view.own = limitOf(view.data, view.part, view.options, view.panels);
    const limit = Math.max(...group.map(({ own }) => own));
    for (const view of group) {
      if (!all && view.limit === limit) continue;
      view.limit = limit;
      view.together = group.length;
      view.layout(true);
    }
  }

  layout(anew = false) {
    const changed = this.drawn !== this.width;
    this.drawn = this.width; // 0 where the host is hidden
    if (!this.width || !(changed || anew)) return;
    if (!anew) return this.settle(true); // the maps of a group are as large as the least room allows
    this.drawing.layout(this.width);
    this.paint();
  }

  paint() {
    this.ink = getComputedStyle(this.root).color;
    this.dark = isDark(this.root);
    this.root.style.colorScheme = this.dark ? "dark" : "light";
    this.ramps = rampsOf(this.data.look, this.dark);
    const { robust, sink, scale } = this.options;
    const end = SCALES[scale].shares ? `${percent(this.limit)} of the row` : `±${number(this.limit)}`;
    const most = robust ? `; one value in 200 is larger${sink ? ", apart from the first key" : ""}` : "";
    const window = this.part ? " in this window" : "";
    const group = this.together > 1 ? ` of all ${this.together} views` : "";
    const maps = this.mode === "maps" ? this.drawings.maps.panels.map(({ short }) => short) : [];
    const shared = maps.length > 1 ? `${maps.slice(0, -1).join(", ")} and ${maps.at(-1)} share one colour scale` : "colour scale";
    this.range.textContent = this.leads ? `${shared}${group}: ${SCALES[scale].label}, up to ${end}${window}${most}` : "";
    this.placeControls();
    const { spans: own, keySpans } = this.data;
    const spans = [...own, ...keySpans].filter(
      ({ name, ranges }, at, all) => ranges.length && all.findIndex((span) => span.name === name && span.ranges.length) === at,
    );
    this.legend.replaceChildren(...spans.map((span) => this.named(span)), this.range);
    this.name();
    this.drawing.paint();
    this.read();
  }

  // The heading: which head, and whether every value of the window is drawn, or of bins the largest.
  name() {
    const { title, bin } = this.data;
    const bins = bin === 1 || this.mode === "lines" || this.part ? "" : ` · largest |value| of each ${bin} × ${bin}`;
    const exact = bin > 1 && this.part && this.mode === "maps" ? " · every value of this window" : "";
    const both = bins && this.overlaps() ? ", every value where it is loaded" : "";
    this.heading.textContent = `${title}${bins}${both}${exact}`;
  }

  // Whether exact values are drawn over a part of the window.
  overlaps() {
    const { detail } = this.data;
    if (!detail) return false;
    const { top, left } = this.window;
    const [rows, columns] = detail.shape;
    const above = top < detail.top + rows && detail.top < top + this.rows;
    return above && left < detail.left + columns && detail.left < left + this.columns;
  }

  // What is pointed at and what is locked, as far as the view has been drawn.
  mark() {
    if (!this.ramps) return;
    this.drawing.mark();
    this.read();
  }

  read() {
    this.readout.textContent = this.pointer ? this.drawing.read(this.pointer) : this.summary();
  }

  summary() {
    const { tokens, keyTokens } = this.data;
    const named = (set, all) => [...set].map((at) => token(all, at)).join(", ");
    const parts = [];
    if (this.locked.rows.size) parts.push(`queries ${named(this.locked.rows, tokens)}`);
    if (this.locked.columns.size) parts.push(`keys ${named(this.locked.columns, keyTokens)}`);
    return parts.length ? `locked: ${parts.join("; ")} (escape unlocks)` : this.leads ? `${HINT} ${this.arrows.hint}.` : "";
  }

  pointAt(at, event = null) {
    for (const view of linked(this)) {
      view.pointer = at;
      view.mark();
    }
    this.float(at && event);
  }

  // The readout stands beside the pointer, else below the maps.
  float(event) {
    this.readout.classList.toggle("tip", Boolean(event));
    this.foot.style.minHeight = this.together > 1 ? "4.2em" : "1.5em";
    if (!event) return;
    const frame = this.root.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const { offsetWidth: wide, offsetHeight: tall } = this.readout;
    const left = x + 18 + wide < frame.width ? x + 18 : Math.max(0, x - 18 - wide);
    const top = event.clientY + 18 + tall < window.innerHeight ? y + 18 : y - 18 - tall;
    const background = this.dark ? this.data.look.dark : "#ffffff";
    Object.assign(this.readout.style, { left: `${left}px`, top: `${top}px`, background });
  }

  // A click locks a row and a column; with shift in addition to those that are.
  lock({ row, column }, more) {
    const rows = new Set(more ? this.locked.rows : []);
    const columns = new Set(more ? this.locked.columns : []);
    const held = (row === null || this.locked.rows.has(row)) && (column === null || this.locked.columns.has(column));
    const change = held ? "delete" : "add";
    if (row !== null) rows[change](row);
    if (column !== null) columns[change](column);
    this.hold(rows, columns);
  }

  hold(rows, columns) {
    for (const view of linked(this)) {
      view.locked = { rows: new Set(rows), columns: new Set(columns) };
      view.mark();
      view.remember();
    }
    this.emit("locked", { rows: [...rows], columns: [...columns] });
  }

  get focused() {
    return this.root.matches(":focus-within");
  }

  get longest() {
    return Math.max(this.data.queries, this.data.keys);
  }

  // Tokens that the window shows of an axis of so many: as large a share of queries and of keys, so that a rectangle fills the map.
  along(count, { size } = this.window) {
    return Math.max(Math.min(LEAST, count), (size * count) / this.longest);
  }

  get rows() {
    return this.along(this.data.queries);
  }

  get columns() {
    return this.along(this.data.keys);
  }

  // A window moved to where there are queries and keys.
  within({ top, left, size }) {
    const moved = (from, count) => Math.min(Math.max(0, from), count - this.along(count, { size }));
    return { top: moved(top, this.data.queries), left: moved(left, this.data.keys), size };
  }

  // Zooms about a token, else about the middle; returns whether there was anything left to zoom.
  zoom(factor, about = null) {
    const { top, left, size } = this.window;
    const { longest: whole, rows, columns } = this;
    const row = about?.row ?? top + rows / 2;
    const column = about?.column ?? left + columns / 2;
    const next = Math.min(whole, Math.max(Math.min(LEAST, whole), size * factor));
    const share = (count, before) => this.along(count, { size: next }) / before;
    const { queries, keys } = this.data;
    this.look(row - (row - top) * share(queries, rows), column - (column - left) * share(keys, columns), next);
    return next !== size;
  }

  whole() {
    this.look(0, 0, this.longest);
  }

  look(top, left, size) {
    const views = linked(this);
    for (const view of views) view.window = view.within({ top, left, size });
    this.settle();
    for (const view of views) {
      if (view.ramps) view.drawing.draw();
      view.name();
      view.ask();
      view.remember();
    }
  }

  // Asks the host for what the window lacks, once it has come to rest.
  ask() {
    clearTimeout(this.asking);
    if (this.lacks()) this.asking = setTimeout(() => this.emit("window", this.asked()), 150);
  }

  // Whether the window is small enough for values token by token, and the buffer has not all of them.
  lacks() {
    if (this.data.bin === 1 || this.window.size > EXACT - 2) return false;
    return this.part === "" || (this.mode === "lines" && !this.hasLines());
  }

  // What the window is drawn from: exact values, if the buffer has all of them, else bins.
  get part() {
    const { detail, queries, keys } = this.data;
    if (!detail) return "";
    const { top, left } = this.window;
    const within = (from, long, start, count, whole) => from >= start && Math.min(from + long, whole) <= start + count;
    const [rows, columns] = detail.shape;
    const above = within(top, this.rows, detail.top, rows, queries);
    return above && within(left, this.columns, detail.left, columns, keys) ? "detail." : "";
  }

  // Whether the buffer has the strongest keys of the window's queries.
  hasLines() {
    const { lines, queries } = this.data;
    const { top } = this.window;
    return lines != null && Math.floor(top) >= lines.top && Math.min(top + this.rows, queries) <= lines.top + lines.queries;
  }

  // The window in whole tokens, with as much around it as is exact at a time.
  asked() {
    const { top, left, size } = this.window;
    const count = Math.min(EXACT, 2 * Math.ceil(size) + 2);
    const from = (start, long) => Math.max(0, Math.floor(start - (count - long) / 2));
    return { top: from(top, this.rows), left: from(left, this.columns), size: count, lines: this.mode === "lines" };
  }

  // How the view is looked at, as an address keeps it.
  state() {
    const { rows, columns } = this.locked;
    const state = { mode: this.mode, ...this.options };
    if (this.parts !== null) state.parts = this.parts;
    const short = Object.entries(this.window).map(([name, tokens]) => [name, Math.round(10 * tokens) / 10]);
    if (this.window.size < this.longest) state.window = Object.fromEntries(short);
    if (rows.size || columns.size) state.locked = { rows: [...rows], columns: [...columns] };
    if (this.heads) state.heads = this.heads;
    return state;
  }

  remember() {
    if (!this.data.state) return;
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      const state = JSON.stringify(this.state());
      if (state !== this.remembered) this.emit("state", JSON.parse(state));
      this.remembered = state;
    }, PAUSE);
  }

  // The cell beside the one that is read, within the window; first the window's last query and first key.
  step(down, right) {
    const { queries, keys } = this.data;
    const { top, left } = this.window;
    const bin = this.part || this.mode === "lines" ? 1 : this.data.bin;
    const next = (at, by, from, count) =>
      Math.max(Math.ceil(from), Math.min(at + by * bin, Math.min(count, Math.floor(from + this.along(count))) - 1));
    const from = this.pointer ?? { row: queries, column: Math.ceil(left) };
    const row = next(from.row ?? queries, this.pointer ? down : 0, top, queries);
    const column = next(from.column ?? Math.ceil(left), this.pointer ? right : 0, left, keys);
    this.pointAt({ row, column: this.mode === "lines" ? null : column });
  }

  key(event) {
    const heads = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (heads && event.target === this.root) {
      if (this.arrows === HEADS) this.move(...heads);
      else this.step(...heads);
    } else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.5);
    else if (event.key === "-") this.zoom(1.5);
    else if (event.key === "Escape") {
      this.hold([], []);
      this.whole();
    } else return;
    event.preventDefault();
  }
}

export function mount(host, buffer, emit) {
  return new View(host, buffer, emit);
}
