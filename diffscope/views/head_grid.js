// All heads of a model, layers × heads: a statistic as colours with its numbers, or a small picture of a map of every head.
//
// The buffer is written by diffscope/views/heads.py. Hosts call mount(element, buffer, emit); what it returns takes further
// buffers (update) and is told to go (leave). Which heads are off the host says: a key or a click only asks.

const WIDEST = { colours: 64, pictures: 128 }; // pixels of a cell
const [LOWEST, HIGHEST, TALL] = [6, 28, 560]; // pixels of a row of colours, and of all of them
const STRIP = 7; // pixels of a statistic's colour below a picture
const [LEFT, TOP] = [56, 18]; // pixels of the numbers of layers and heads
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

const same = (a, b) => a && b && a.row === b.row && a.column === b.column;

class HeadGrid {
  constructor(host, buffer, emit) {
    this.host = host;
    this.emit = emit || (() => {});
    this.pointer = null; // the cell below the pointer
    this.cursor = null; // the cell that keys move
    this.wanted = null; // the cell that was asked for and that the host has not named yet
    this.resized = new ResizeObserver(() => this.layout());
    this.turned = ({ detail }) => this.follow(detail);
    this.build();
    this.update(buffer);
    window.addEventListener(CHOSEN, this.turned);
    this.resized.observe(this.host);
  }

  // Another head is looked at somewhere on the page.
  follow({ layer, head, from, awaited }) {
    const cell = { row: layer - this.view.layers[0], column: head };
    if (from !== this && this.has(cell)) this.want(cell, awaited);
  }

  // The reader's choice: it is framed, faintly as long as the page does not show that head. What the host sends of an earlier choice
  // leaves it as it is.
  want(cell, awaited) {
    this.chosen = cell;
    clearTimeout(this.waiting);
    if (HOLDERS.size) {
      this.wanted = { cell, awaited };
      this.waiting = setTimeout(() => this.settle(), PATIENCE);
    }
    this.mark();
  }

  // The host's choice.
  settle() {
    clearTimeout(this.waiting);
    this.wanted = null;
    const { chosen, layers } = this.view;
    this.chosen = chosen && { row: chosen.layer - layers[0], column: chosen.head };
    this.mark();
  }

  leave() {
    clearTimeout(this.waiting);
    window.removeEventListener(CHOSEN, this.turned);
    this.resized.disconnect();
    this.host.replaceChildren();
  }

  build() {
    this.root = element("div", { ...TURNING, fontSize: "13px", lineHeight: 1.35, position: "relative" });
    whenTurned(this.root, () => this.paint());
    const line = { display: "flex", flexWrap: "wrap", gap: "5px 14px", alignItems: "center" };
    const bar = element("div", { ...line, marginBottom: "4px" });
    this.heading = element("strong");
    this.scales = element("span", line);
    bar.append(this.heading, this.scales);
    this.grid = element("div", { position: "relative", outline: "none", width: "fit-content" }, { role: "grid", tabindex: "0" });
    this.cells = element("canvas", { display: "block" }, { "aria-hidden": "true" });
    this.over = element("canvas", { position: "absolute", left: 0, top: 0 }, { "aria-hidden": "true" });
    // of the cells a screen reader needs the one that keys are on
    const unseen = { position: "absolute", width: "1px", height: "1px", overflow: "hidden", clipPath: "inset(50%)" };
    this.row = element("div", unseen, { role: "row" });
    this.active = element("div", {}, { role: "gridcell", id: `head-${Math.random().toString(36).slice(2)}` });
    this.row.append(this.active);
    this.grid.append(this.cells, this.over, this.row);
    this.notes = element("div", { ...line, marginTop: "4px", opacity: 0.8 });
    this.readout = element("div", { minHeight: "1.4em", marginTop: "2px" }, { "aria-live": "polite" });
    const box = { position: "absolute", zIndex: 10, padding: "6px 9px", borderRadius: "4px", display: "none" };
    const edge = { border: "1px solid rgba(128, 128, 128, 0.6)", boxShadow: "0 1px 6px rgba(0, 0, 0, 0.3)" };
    this.tip = element("div", { ...box, ...edge, pointerEvents: "none" }, { "aria-hidden": "true", "data-tip": "" });
    this.root.append(bar, this.grid, this.notes, this.readout, this.tip);
    this.host.replaceChildren(this.root);
    this.over.addEventListener("pointermove", (event) => this.pointAt(this.under(event)));
    this.over.addEventListener("pointerleave", () => this.pointAt(null));
    this.over.addEventListener("click", (event) => this.click(this.under(event), event.shiftKey));
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("focus", () => this.grid.matches(":focus-visible") && this.move(this.start() || this.first()));
    this.grid.addEventListener("blur", () => this.move(null));
  }

  // Other values, another head chosen, others off.
  update(buffer) {
    const view = opened(buffer),
      first = view.layers[0];
    if (this.view?.title !== view.title) this.robust = null; // until the reader chooses, what suits the statistic
    this.view = view;
    // layers without attention are rows, too: a row's place among those that have it, or -1
    this.rows = Array.from({ length: view.layers.at(-1) - first + 1 }, (_, row) => view.layers.indexOf(first + row));
    const chosen = view.chosen && { row: view.chosen.layer - first, column: view.chosen.head };
    if (!this.wanted || same(chosen, this.wanted.cell) || !this.has(this.wanted.cell)) {
      clearTimeout(this.waiting);
      this.wanted = null;
      this.chosen = chosen;
    }
    this.off = new Set(view.off.map(({ layer, head }) => `${layer} ${head}`));
    this.heading.textContent = view.title;
    const keys = view.switching ? "enter chooses, x switches a head off and on" : "enter chooses";
    const about = {
      "aria-rowcount": this.rows.length,
      "aria-colcount": view.heads,
      "aria-label": `${view.title}, by layer and head; arrows move, ${keys}`,
      "aria-description": view.statistic?.definition ?? "",
    };
    for (const [name, value] of Object.entries(about)) this.grid.setAttribute(name, value);
    if (!this.has(this.cursor)) this.cursor = null;
    if (this.pointer && (this.pointer.row >= this.rows.length || this.pointer.column >= view.heads)) this.pointer = null;
    this.place = "";
    this.layout();
  }

  // Where a cell's values are, or -1 where there is no such head.
  at({ row, column }) {
    const layer = this.rows[row] ?? -1,
      index = layer * this.view.heads + column;
    return layer >= 0 && column >= 0 && column < this.view.heads && this.view.tensors.there[index] ? index : -1;
  }

  has(cell) {
    return Boolean(cell) && this.at(cell) >= 0;
  }

  named({ row, column }) {
    return { layer: this.view.layers[0] + row, head: column };
  }

  *every() {
    for (let row = 0; row < this.rows.length; row++)
      for (let column = 0; column < this.view.heads; column++) if (this.has({ row, column })) yield { row, column };
  }

  layout() {
    const { tensors, heads } = this.view,
      room = this.host.clientWidth,
      place = `${room} ${window.devicePixelRatio}`;
    if (!room || place === this.place) return;
    this.place = place;
    const pictures = "thumbnails" in tensors;
    this.wide = Math.min(pictures ? WIDEST.pictures : WIDEST.colours, (room - LEFT - 1) / heads);
    if (this.wide > 8) this.wide = Math.floor(this.wide); // equal cells
    this.strip = pictures && "values" in tensors ? Math.min(STRIP, Math.max(2, Math.floor(this.wide / 6))) : 0;
    this.high = Math.floor(Math.min(HIGHEST, Math.max(LOWEST, TALL / this.rows.length)));
    if (pictures) this.high = this.wide + this.strip;
    this.gap = Math.min(this.wide, this.high) > 8 ? Math.round(window.devicePixelRatio || 1) : 0; // in pixels of the canvas
    const size = [LEFT + Math.ceil(heads * this.wide) + 1, TOP + Math.ceil(this.rows.length * this.high) + 1];
    for (const canvas of [this.cells, this.over]) sized(canvas, ...size);
    this.paint();
  }

  // A cell in the pixels of the canvas, with a gap after it where there is room for one.
  box({ row, column }) {
    const ratio = window.devicePixelRatio || 1;
    const [left, right] = [column, column + 1].map((at) => Math.round((LEFT + at * this.wide) * ratio));
    const [top, bottom] = [row, row + 1].map((at) => Math.round((TOP + at * this.high) * ratio));
    return { x: left, y: top, width: Math.max(1, right - left - this.gap), height: Math.max(1, bottom - top - this.gap) };
  }

  paint() {
    if (!this.place) return;
    const { look, statistic, picture } = this.view;
    this.dark = isDark(this.root);
    this.ink = getComputedStyle(this.root).color;
    this.paper = this.dark ? look.dark : "#ffffff";
    this.none = this.dark ? look.unseenDark : look.unseen;
    this.ramps = rampsOf(look, this.dark);
    this.scales.replaceChildren();
    this.notes.replaceChildren();
    const context = this.cells.getContext("2d");
    context.clearRect(0, 0, this.cells.width, this.cells.height);
    this.axes(context);
    if (picture) this.pictures(context);
    if (statistic) this.values(context);
    if (this.view.switching) this.note("shift-click or x switches a head off and on");
    this.mark();
  }

  note(words) {
    this.notes.append(element("span", {}, {}, words));
  }

  axes(context) {
    const ratio = window.devicePixelRatio || 1,
      { heads, layers } = this.view;
    context.save();
    context.scale(ratio, ratio);
    context.font = `${LETTERS}px system-ui, sans-serif`;
    context.fillStyle = this.ink;
    context.globalAlpha = 0.75;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillText("head", LEFT - 6, TOP / 2);
    const down = Math.ceil((LETTERS + 3) / this.high),
      across = Math.ceil((context.measureText(String(heads)).width + 4) / this.wide);
    for (let row = 0; row < this.rows.length; row += down)
      context.fillText(`layer ${layers[0] + row}`, LEFT - 6, TOP + (row + 0.5) * this.high);
    context.textAlign = "center";
    for (let column = 0; column < heads; column += across)
      context.fillText(String(column), LEFT + (column + 0.5) * this.wide, TOP / 2);
    context.restore();
  }

  pictures(context) {
    const { picture, tensors, shapes } = this.view,
      [, , queries, keys] = shapes.thumbnails,
      size = queries * keys,
      ramp = this.ramps[picture.scale],
      shared = { queries, keys, ramp, signed: picture.signed, none: packed(channels(this.none)) };
    const part = (values, index) => values.subarray(index * size, (index + 1) * size);
    for (const cell of this.every()) {
      const layer = shapes.visible[0] > 1 ? this.rows[cell.row] : 0;
      const own = { levels: part(tensors.thumbnails, this.at(cell)), visible: part(tensors.visible, layer) };
      drawPicture(context, this.box(cell), { ...shared, ...own });
    }
    const bar = { low: ramp.diverging ? -picture.limit : 0, high: picture.limit, below: ramp.diverging && picture.clipped };
    bar.place = (value) => value / picture.limit;
    this.scale(ramp, `${picture.title} in the pictures`, { ...bar, above: picture.clipped });
  }

  // The colours of a statistic, fully or as a strip below pictures; numbers where all of them fit.
  values(context) {
    const { statistic, tensors } = this.view,
      ratio = window.devicePixelRatio || 1,
      ramp = this.ramps[statistic.scale],
      own = [...this.every()].map((cell) => tensors.values[this.at(cell)]),
      range = rangeOf(own, (this.robust ?? statistic.unbounded) ? statistic.robust : statistic.largest);
    this.limit = range.limit;
    const place = (value) => Math.max(-1, Math.min(1, value / range.limit)),
      hatched = hatching(context, this.none, this.dark);
    context.font = `${LETTERS * ratio}px system-ui, sans-serif`;
    const room = Math.max(...own.map((value) => context.measureText(short(value)).width));
    for (const cell of this.every()) {
      const value = tensors.values[this.at(cell)],
        box = this.box(cell);
      if (this.strip) box.y += box.height - Math.round(this.strip * ratio) + 1;
      if (this.strip) box.height = Math.round(this.strip * ratio) - 1;
      context.fillStyle = this.none; // a hairline, so that zero is not taken for a layer without attention
      context.fillRect(box.x - this.gap, box.y - this.gap, box.width + 2 * this.gap, box.height + 2 * this.gap);
      if (Number.isNaN(value)) {
        context.fillStyle = hatched;
        context.fillRect(box.x, box.y, box.width, box.height);
      } else {
        const colour = colourAt(ramp, place(value));
        drawValue(context, box, { value, colour, beyond: Math.abs(value) > range.limit, room });
      }
    }
    if (range.count) this.scale(ramp, [this.strip && "strips below them", statistic.units].filter(Boolean).join(", "), { ...range, place });
    if (statistic.robust < statistic.largest) this.scales.append(this.tick());
    const beyond = range.below + range.above;
    if (beyond) this.note(`▲ ▼ beyond the colours: ${beyond} ${beyond === 1 ? "head" : "heads"}`);
    if (range.missing) this.note(`▨ undefined: ${statistic.undefined}`);
  }

  scale(ramp, title, bar) {
    const line = element("span", { display: "inline-flex", gap: "8px", alignItems: "center" });
    const label = `colours ${title} from ${digits(bar.low, 4)} to ${digits(bar.high, 4)}`;
    line.append(rangeBar(ramp, { ...bar, label }), title);
    this.scales.append(line);
  }

  tick() {
    const line = element("label", { display: "inline-flex", gap: "4px", alignItems: "center" });
    line.title = "colours end at the largest value that is not far out";
    const box = element("input", {}, { type: "checkbox" });
    box.checked = this.robust ?? this.view.statistic.unbounded;
    box.addEventListener("change", () => {
      this.robust = box.checked;
      this.paint();
      this.scales.querySelector("input").focus();
    });
    line.append(box, "Robust range");
    return line;
  }

  // Crosses and frames: over the cells, so that the pointer never waits for them to be drawn anew.
  mark() {
    const context = this.over.getContext("2d"),
      colours = [this.ink, this.paper];
    context.clearRect(0, 0, this.over.width, this.over.height);
    for (const cell of this.every()) if (this.isOff(cell)) drawCross(context, this.box(cell), ...colours);
    context.globalAlpha = this.wanted?.awaited ? 0.4 : 1;
    if (this.has(this.chosen)) drawFrame(context, this.box(this.chosen), ...colours, 2, []);
    context.globalAlpha = 1;
    if (this.has(this.pointer)) drawFrame(context, this.box(this.pointer), ...colours, 1, []);
    if (this.cursor) drawFrame(context, this.box(this.cursor), ...colours, 2, [3, 2]);
    this.say();
  }

  isOff(cell) {
    const { layer, head } = this.named(cell);
    return this.off.has(`${layer} ${head}`);
  }

  // The head below the pointer or the cursor, in a box beside it and in the line below the grid; else the one that is chosen.
  say() {
    const cell = this.pointer || this.cursor,
      shown = cell || this.chosen,
      [name, value, ...more] = shown ? this.words(shown) : [];
    this.readout.textContent = [cell || !shown ? name : `${name}, in the frame`, value].filter(Boolean).join(": ");
    const active = this.cursor || this.start();
    if (active) {
      this.row.setAttribute("aria-rowindex", active.row + 1);
      this.active.setAttribute("aria-colindex", active.column + 1);
      this.active.setAttribute("aria-selected", String(Boolean(same(active, this.chosen))));
      this.active.textContent = this.words(active)[0];
      this.grid.setAttribute("aria-activedescendant", this.active.id);
    } else this.grid.removeAttribute("aria-activedescendant");
    this.tip.style.display = cell && !this.hidden ? "block" : "none";
    if (cell && !this.hidden) this.show([name, value, ...more].filter(Boolean), cell);
  }

  // What there is to say of a cell: the name of its head, its value, and what that means.
  words(cell) {
    const { statistic, tensors } = this.view,
      { layer, head } = this.named(cell);
    if (this.rows[cell.row] === -1) return [`layer ${layer}`, "no attention was captured here"];
    if (!this.has(cell)) return [`layer ${layer}`, `there is no head ${head}`];
    const name = `${headName(layer, head)}${this.isOff(cell) ? " (off)" : ""}`;
    if (!statistic) return [name];
    const value = tensors.values[this.at(cell)],
      text = Number.isNaN(value) ? `undefined: ${statistic.undefined}` : `${digits(value, 4)} ${statistic.units}`.trim();
    const words = [name, text, `${statistic.title}.`, statistic.definition];
    if (Math.abs(value) > this.limit) words.push(`beyond the colours, which end at ${digits(this.limit, 4)}`);
    return words;
  }

  // The box stands right of the grid, also over what is beside it, if the window has room, else below its cell, or above where that is nearer the grid's end.
  show(lines, cell) {
    const style = (line) => ({ fontWeight: line ? "normal" : "bold", opacity: line > 1 ? 0.8 : 1 });
    const parts = lines.map((text, line) => element("div", style(line), {}, text));
    this.tip.replaceChildren(...parts);
    const ratio = window.devicePixelRatio || 1,
      whole = Math.min(window.innerWidth, document.documentElement.clientWidth) - this.root.getBoundingClientRect().left,
      { x, y, height } = this.box(cell),
      { offsetLeft, offsetTop, offsetWidth } = this.grid,
      beside = offsetLeft + offsetWidth + 10,
      right = whole - beside >= 150;
    const maxWidth = `${Math.min(320, right ? whole - beside : whole) - 20}px`;
    const look = { background: this.paper, color: this.ink, width: "max-content", maxWidth };
    Object.assign(this.tip.style, { ...look, left: 0, top: 0 });
    const { offsetWidth: wide, offsetHeight: tall } = this.tip,
      below = cell.row < this.rows.length / 2 || y / ratio < tall + 8;
    const left = right ? beside : Math.max(0, Math.min(whole - wide, offsetLeft + x / ratio));
    let top = below ? (y + height) / ratio + 8 : y / ratio - tall - 8;
    if (right) top = y / ratio;
    Object.assign(this.tip.style, { left: `${left}px`, top: `${offsetTop + top}px` });
  }

  under(event) {
    const frame = this.over.getBoundingClientRect(),
      column = Math.floor((event.clientX - frame.left - LEFT) / this.wide),
      row = Math.floor((event.clientY - frame.top - TOP) / this.high);
    return row >= 0 && column >= 0 && row < this.rows.length && column < this.view.heads ? { row, column } : null;
  }

  pointAt(cell) {
    if (cell === this.pointer || same(cell, this.pointer)) return;
    this.pointer = cell;
    this.hidden = false;
    this.over.style.cursor = this.has(cell) ? "pointer" : "default";
    this.mark();
  }

  click(cell, shift) {
    if (!this.has(cell)) return;
    this.cursor = null;
    this.act(cell, shift && this.view.switching);
  }

  act(cell, off) {
    if (off) this.mark();
    else this.want(cell, announce({ ...this.named(cell), from: this }));
    this.emit(off ? "off" : "chosen", this.named(cell));
  }

  // Where keys begin.
  start() {
    return this.has(this.chosen) ? this.chosen : null;
  }

  first() {
    return this.every().next().value ?? null;
  }

  move(cell) {
    this.cursor = cell;
    this.hidden = false;
    this.mark();
  }

  // The next head in a direction, over rows without any.
  beyond({ row, column }, [down, right]) {
    for (let by = 1; by <= Math.max(this.rows.length, this.view.heads); by++) {
      const next = { row: row + by * down, column: column + by * right };
      if (this.has(next)) return next;
    }
    return { row, column };
  }

  key(event) {
    const cell = this.cursor || this.start();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROWS) {
      this.pointer = null; // until it moves
      this.move(cell ? this.beyond(cell, ARROWS[event.key]) : this.first());
    } else if (cell && (event.key === "Enter" || event.key === " ")) this.act(cell, false);
    else if (cell && event.key.toLowerCase() === "x" && this.view.switching) this.act(cell, true);
    else if (event.key === "Escape") {
      this.hidden = true;
      this.mark();
    } else return;
    event.preventDefault();
  }
}

export function mount(host, buffer, emit) {
  return new HeadGrid(host, buffer, emit);
}
