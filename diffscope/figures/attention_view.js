// The maps A1, A2, λ·A2 and D of one head, linked: one window, one crosshair, one scale. Drawn on canvases from one buffer.
//
// The buffer is a safetensors file (diffscope/figures/attention_view.py writes it): maps in bins as float16, what keys receive and
// the entropy of queries as float32, and everything else as JSON under __metadata__.view. Hosts call mount(element, buffer, emit);
// what it returns takes further buffers (update) and is told to go (leave).

const HALVES = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const exponent = (bits >> 10) & 31,
    fraction = bits & 1023;
  const size =
    exponent === 0
      ? fraction * 2 ** -24
      : exponent === 31
        ? fraction
          ? NaN
          : Infinity
        : (1024 + fraction) * 2 ** (exponent - 25);
  HALVES[bits] = bits & 32768 ? -size : size;
}

// The tensors of a safetensors file by name, as float32, and the view's own words.
export function parse(bytes) {
  const buffer = bytes instanceof ArrayBuffer ? bytes : bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, about] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const raw = buffer.slice(8 + length + about.data_offsets[0], 8 + length + about.data_offsets[1]);
    let values;
    if (about.dtype === "F16") values = Float32Array.from(new Uint16Array(raw), (bits) => HALVES[bits]);
    else if (about.dtype === "F32") values = new Float32Array(raw);
    else if (about.dtype === "U8") values = new Uint8Array(raw);
    else throw new Error(`a view has no tensors of ${about.dtype}`);
    tensors[name] = { shape: about.shape, values };
  }
  return { ...JSON.parse(header.__metadata__.view), tensors };
}

const EDGE = 26; // pixels of the strips along a map
const EXACT = 256; // tokens a side of a window up to which values are asked for token by token

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// 256 colours, as one integer each (ABGR, as canvases keep them), along stops at equal distances.
function ramp(stops) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1),
      low = Math.min(Math.floor(at), stops.length - 2);
    const [r, g, b] = channels(stops[low]).map((from, c) => Math.round(from + (channels(stops[low + 1])[c] - from) * (at - low)));
    table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

// Dark pages begin at the page's own dark and end light, but not so light that two colours meet.
function rampsOf(look, dark) {
  const onPage = (stops) => (dark ? [look.dark, ...stops.slice(3).reverse()] : stops);
  const blue = onPage(look.blue),
    orange = onPage(look.orange);
  return { blue: ramp(blue), orange: ramp(orange), diverging: ramp([...orange.slice(1).reverse(), ...blue]) };
}

// Where a value is on its colour scale, from 0 to 1 (of a signed scale 0.5 is zero).
const SCALES = {
  root: (share) => Math.sqrt(share),
  raw: (share) => share,
  log: (share) => Math.max(0, 1 + Math.log10(share) / 4), // four decades
};

// The size at the end of the scale: the largest, or what one in two hundred exceeds, without the first key.
function limitOf(view, robust, withoutSink) {
  const first = withoutSink || robust ? 1 : 0;
  const sizes = [];
  for (const { name } of view.panels) {
    const {
      shape: [rows, columns],
      values,
    } = view.tensors[name];
    for (let row = 0; row < rows; row++)
      for (let column = columns > 1 ? first : 0; column < columns; column++) {
        const size = Math.abs(values[row * columns + column]);
        if (size > 0) sizes.push(size);
      }
  }
  if (!sizes.length) return 1;
  const sorted = Float32Array.from(sizes).sort();
  return robust ? sorted[Math.floor(0.995 * (sorted.length - 1))] : sorted[sorted.length - 1];
}

// Below 1e-5 the digits of float16 are those of its least number, 6e-8, and no longer those of the value.
function number(value) {
  if (Number.isNaN(value)) return "–";
  if (Math.abs(value) < 1e-5) return "|x| < 1e-5";
  return Math.abs(value) >= 0.001 ? value.toFixed(4) : value.toExponential(1);
}

function element(tag, style, attributes = {}) {
  const node = document.createElement(tag);
  Object.assign(node.style, style);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

class View {
  constructor(host, buffer, emit) {
    this.host = host;
    this.emit = emit || (() => {});
    this.options = { scale: "root", robust: true, sink: true };
    this.locked = { rows: new Set(), columns: new Set() };
    this.pointer = null;
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.paint();
    this.scheme.addEventListener("change", this.redraw);
    this.resized = new ResizeObserver(() => this.layout());
    this.build();
    this.update(buffer);
    this.resized.observe(this.host);
  }

  leave() {
    this.resized.disconnect();
    this.scheme.removeEventListener("change", this.redraw);
    this.host.replaceChildren();
  }

  // A page may be light where the system is dark: the colour of its text tells.
  get dark() {
    const [red, green, blue] = getComputedStyle(this.root)
      .color.match(/[\d.]+/g)
      .map(Number);
    return 0.3 * red + 0.6 * green + 0.1 * blue > 128;
  }

  build() {
    this.root = element("div", { fontSize: "13px", outline: "none", color: "inherit" }, { tabindex: "0", role: "application" });
    this.bar = element("div", { display: "flex", flexWrap: "wrap", gap: "12px", alignItems: "center", marginBottom: "6px" });
    this.heading = element("strong", { flex: "1 1 auto" });
    this.range = element("span", { opacity: 0.75 });
    this.bar.append(
      this.heading,
      this.range,
      this.choice("scale", "Scale", Object.keys(SCALES)),
      this.tick("robust", "Robust range"),
    );
    this.bar.append(
      this.tick("sink", "First key", "of a long prompt the first bin"),
      this.button("−", "Zoom out", () => this.zoom(1.5)),
    );
    this.bar.append(
      this.button("+", "Zoom in", () => this.zoom(1 / 1.5)),
      this.button("⤢", "Whole map", () => this.whole()),
    );
    this.panels = element("div", { display: "grid", gap: "10px" });
    const lines = { minHeight: "4.2em", marginTop: "6px", whiteSpace: "pre-wrap", fontVariantNumeric: "tabular-nums" };
    this.readout = element("div", lines, { "aria-live": "polite" });
    this.legend = element("div", { display: "flex", flexWrap: "wrap", gap: "4px 14px", marginTop: "4px", opacity: 0.85 });
    this.root.append(this.bar, this.panels, this.legend, this.readout);
    this.host.replaceChildren(this.root);
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  choice(name, label, values) {
    const select = element("select", {}, { "aria-label": label });
    for (const value of values) select.append(new Option(value, value));
    select.value = this.options[name];
    select.addEventListener("change", () => this.choose(name, select.value));
    return select;
  }

  tick(name, label, title = "") {
    const line = element("label", { display: "inline-flex", gap: "4px", alignItems: "center" }, { title });
    const box = element("input", {}, { type: "checkbox" });
    box.checked = this.options[name];
    box.addEventListener("change", () => this.choose(name, box.checked));
    line.append(box, label);
    return line;
  }

  button(text, label, act) {
    const button = element("button", { minWidth: "2em" }, { type: "button", "aria-label": label, title: label });
    button.textContent = text;
    button.addEventListener("click", act);
    return button;
  }

  choose(name, value) {
    this.options[name] = value;
    this.paint();
  }

  // Another head, or the same one at another resolution; the window and the locks stay as long as the prompt is the same.
  update(buffer) {
    const before = this.view;
    this.view = parse(buffer);
    const same = before && before.prompt === this.view.prompt;
    if (!same) {
      this.locked = { rows: new Set(), columns: new Set() };
      this.window = { top: 0, left: 0, size: Math.max(this.view.queries, this.view.keys) };
    }
    this.heading.textContent = this.view.title;
    this.root.setAttribute("aria-label", `${this.view.title}: ${this.view.panels.map((panel) => panel.title).join(", ")}`);
    this.legend.replaceChildren(...this.view.spans.filter((span) => span.ranges.length).map((span) => this.named(span)));
    const names = (view) => view.panels.map((panel) => panel.name).join();
    if (before && names(before) === names(this.view)) return this.paint();
    this.panels.replaceChildren();
    this.canvases = this.view.panels.map((panel) => this.panel(panel));
    this.layout();
  }

  named(span) {
    const line = element("span", { display: "inline-flex", gap: "5px", alignItems: "center" });
    line.append(element("span", { width: "10px", height: "10px", background: span.colour }), span.name);
    return line;
  }

  panel(panel) {
    const box = element("figure", { margin: 0, minWidth: 0 });
    const caption = element("figcaption", { marginBottom: "2px" });
    caption.textContent = panel.title;
    const stack = element("div", { position: "relative", touchAction: "none" });
    const map = element("canvas", { display: "block", imageRendering: "pixelated" }, { "data-map": panel.name });
    const over = element("canvas", { position: "absolute", left: 0, top: 0, cursor: "crosshair" });
    const edge = (title) => element("canvas", { display: "block" }, { title, "aria-hidden": "true" });
    const entropy = edge("entropy of each query's row"),
      received = edge("what each key receives from all queries");
    stack.append(map, over);
    const frame = element("div", { display: "grid", gridTemplateColumns: "auto auto", gap: "2px", justifyContent: "start" });
    frame.append(stack, entropy, received);
    box.append(caption, frame);
    this.panels.append(box);
    over.addEventListener("pointermove", (event) => this.moved(event, over));
    over.addEventListener("pointerleave", () => this.pointAt(null));
    over.addEventListener("pointerdown", (event) => this.grab(event, over));
    over.addEventListener("pointerup", (event) => this.drop(event, over));
    over.addEventListener("wheel", (event) => this.wheel(event, over), { passive: false });
    over.addEventListener("dblclick", () => this.whole());
    return { panel, map, over, entropy, received, image: null, detail: null };
  }

  // Square maps at any width: two in a row below 700 pixels.
  layout() {
    const wide = this.host.clientWidth;
    const columns = Math.min(this.canvases.length, wide < 700 ? 2 : 4);
    const side = Math.max(60, Math.floor((wide - 10 * (columns - 1)) / columns) - EDGE - 2);
    if (!wide || (side === this.side && this.canvases[0].image)) return;
    this.side = side;
    this.panels.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    const sized = (canvas, width, height) => {
      const ratio = window.devicePixelRatio || 1;
      [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    };
    for (const { map, over, entropy, received } of this.canvases) {
      sized(map, side, side);
      sized(over, side, side);
      sized(entropy, EDGE, side);
      sized(received, side, EDGE);
    }
    this.paint();
  }

  paint() {
    this.limit = limitOf(this.view, this.options.robust, !this.options.sink);
    this.range.textContent = `colours end at ±${number(this.limit)}${this.options.robust ? ", which one value in 200 exceeds" : ""}`;
    const ramps = rampsOf(this.view.look, this.dark);
    for (const each of this.canvases) {
      each.image = this.picture(each.panel, ramps, "");
      each.detail = this.view.detail ? this.picture(each.panel, ramps, "detail.") : null;
    }
    this.draw();
  }

  // All bins of a map, one pixel each; bins that no query sees stay clear.
  picture(panel, ramps, part) {
    const {
      shape: [rows, columns],
      values,
    } = this.view.tensors[part + panel.name];
    const visible = this.view.tensors[part + "visible"].values;
    const first = part ? this.view.detail.left : 0; // key of the first column
    const signed = panel.scale === "diverging",
      table = ramps[panel.scale],
      at = SCALES[this.options.scale];
    const canvas = new OffscreenCanvas(columns, rows),
      context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows),
      pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < values.length; i++) {
      if (!visible[i] || (!this.options.sink && first + (i % columns) === 0)) continue;
      const value = values[i],
        place = at(Math.min(1, Math.abs(value) / this.limit));
      pixels[i] = table[Math.round(255 * (signed ? 0.5 + (value < 0 ? -0.5 : 0.5) * place : place))];
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  draw() {
    const { top, left, size } = this.window,
      bin = this.view.bin,
      exact = this.view.detail;
    for (const { panel, map, image, detail, entropy, received } of this.canvases) {
      const context = map.getContext("2d");
      context.fillStyle = this.dark ? this.view.look.unseenDark : this.view.look.unseen;
      context.fillRect(0, 0, map.width, map.height);
      context.imageSmoothingEnabled = false;
      context.drawImage(image, left / bin, top / bin, size / bin, size / bin, 0, 0, map.width, map.height);
      const scale = map.width / size;
      if (detail) {
        const {
          shape: [rows, columns],
        } = this.view.tensors["detail." + panel.name];
        const place = [(exact.left - left) * scale, (exact.top - top) * scale, columns * scale, rows * scale];
        context.fillRect(...place); // keys that are not seen are clear, and the bins below them are not theirs
        context.drawImage(detail, ...place);
      }
      this.bars(received, this.view.tensors["received_" + panel.name], left, false, panel);
      this.bars(entropy, this.view.tensors["entropy_" + panel.name], top, true, panel);
    }
    this.mark();
  }

  // Values of tokens along an edge, each pixel the largest of those that fall on it.
  bars(canvas, tensor, from, down, panel) {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!tensor) return;
    const { values } = tensor,
      { size } = this.window,
      long = down ? canvas.height : canvas.width,
      deep = down ? canvas.width : canvas.height;
    const first = this.options.sink || down ? 0 : 1;
    let most = 0;
    for (let i = Math.max(first, Math.floor(from)); i < Math.min(values.length, from + size); i++)
      most = Math.max(most, Math.abs(values[i]) || 0);
    if (!most) return;
    for (let pixel = 0; pixel < long; pixel++) {
      const start = Math.floor(from + (pixel / long) * size),
        stop = Math.max(start + 1, Math.floor(from + ((pixel + 1) / long) * size));
      let value = 0;
      for (let i = Math.max(start, first); i < Math.min(stop, values.length); i++)
        if (Math.abs(values[i]) > Math.abs(value)) value = values[i];
      const depth = Math.round((Math.abs(value) / most) * deep);
      const negative = panel.scale === "orange" || (panel.scale === "diverging" && value < 0);
      context.fillStyle = negative ? this.view.look.orange[5] : this.view.look.blue[5];
      if (down) context.fillRect(0, pixel, depth, 1);
      else context.fillRect(pixel, 0, 1, depth);
    }
  }

  // Spans, locks and the crosshair: over the maps, so that the pointer never waits for them to be drawn anew.
  mark() {
    const at = this.pointer;
    for (const { over } of this.canvases) {
      const context = over.getContext("2d"),
        scale = over.width / this.window.size;
      context.clearRect(0, 0, over.width, over.height);
      const band = (start, count, across, colour) => {
        const from = (start - (across ? this.window.top : this.window.left)) * scale,
          thick = Math.max(1, count * scale);
        context.fillStyle = colour;
        if (across) context.fillRect(0, from, over.width, thick);
        else context.fillRect(from, 0, thick, over.height);
      };
      for (const span of this.view.spans) {
        context.fillStyle = span.colour;
        for (const [start, stop] of span.ranges) {
          const from = (start - this.window.left) * scale,
            down = (start - this.window.top) * scale,
            long = Math.max(2, (stop - start) * scale);
          context.fillRect(from, over.height - 4, long, 4);
          context.fillRect(0, down, 4, long);
        }
      }
      for (const row of this.locked.rows) band(row, 1, true, "rgba(0, 158, 115, 0.35)");
      for (const column of this.locked.columns) band(column, 1, false, "rgba(0, 158, 115, 0.35)");
      if (at) {
        band(at.row, this.view.bin, true, "rgba(128, 128, 128, 0.45)");
        band(at.column, this.view.bin, false, "rgba(128, 128, 128, 0.45)");
      }
    }
    this.read();
  }

  // What is under the pointer: both tokens, and the value of every map.
  read() {
    const { view, pointer } = this;
    if (!pointer) {
      this.readout.textContent = this.summary();
      return;
    }
    const { part, cell, bin } = this.place(pointer);
    const of = (tensor, place) => (view.tensors[tensor] ? number(view.tensors[tensor].values[place]) : "–");
    const token = (at) => `${JSON.stringify(view.tokens[at] ?? "")} (${at})`;
    const values = view.tensors[part + "visible"].values[cell]
      ? view.panels.map((panel) => `${panel.title} ${of(part + panel.name, cell)}`).join("   ")
      : "not visible to this query";
    const bins = bin > 1 ? `, largest of ${bin} × ${bin}` : "";
    const each = (kind, at) => view.panels.map((panel) => `${panel.short} ${of(`${kind}_${panel.name}`, at)}`).join("   ");
    const margins = `key receives from all queries:   ${each("received", pointer.column)}\nentropy of the row, nats:   ${each("entropy", pointer.row)}`;
    this.readout.textContent = `query ${token(pointer.row)} → key ${token(pointer.column)}${bins}:   ${values}\n${margins}`;
  }

  // Where the values of a cell are: in the exact window, if that holds it, else in bins.
  place({ row, column }) {
    const { view } = this,
      exact = view.detail;
    if (exact) {
      const [rows, columns] = view.tensors["detail.visible"].shape,
        down = row - exact.top,
        right = column - exact.left;
      if (down >= 0 && right >= 0 && down < rows && right < columns)
        return { part: "detail.", cell: down * columns + right, bin: 1 };
    }
    const columns = view.tensors.visible.shape[1];
    return { part: "", cell: Math.floor(row / view.bin) * columns + Math.floor(column / view.bin), bin: view.bin };
  }

  summary() {
    const tokens = (set) => [...set].map((at) => JSON.stringify(this.view.tokens[at])).join(", ");
    const parts = [];
    if (this.locked.rows.size) parts.push(`queries ${tokens(this.locked.rows)}`);
    if (this.locked.columns.size) parts.push(`keys ${tokens(this.locked.columns)}`);
    return parts.length ? `locked: ${parts.join("; ")} (escape unlocks)` : "";
  }

  cell(event, canvas) {
    const box = canvas.getBoundingClientRect(),
      { top, left, size } = this.window;
    const row = Math.floor(top + ((event.clientY - box.top) / box.height) * size);
    const column = Math.floor(left + ((event.clientX - box.left) / box.width) * size);
    return row >= 0 && column >= 0 && row < this.view.queries && column < this.view.keys ? { row, column } : null;
  }

  moved(event, canvas) {
    if (this.grabbed) {
      const box = canvas.getBoundingClientRect(),
        { size } = this.grabbed.window;
      const by = (length, side) => (length / side) * size;
      const { top, left } = this.grabbed.window;
      this.look(top - by(event.clientY - this.grabbed.y, box.height), left - by(event.clientX - this.grabbed.x, box.width), size);
    } else this.pointAt(this.cell(event, canvas));
  }

  pointAt(at) {
    this.pointer = at;
    this.mark();
  }

  grab(event, canvas) {
    canvas.setPointerCapture(event.pointerId);
    this.grabbed = { x: event.clientX, y: event.clientY, window: { ...this.window } };
  }

  drop(event, canvas) {
    const grabbed = this.grabbed;
    this.grabbed = null;
    if (!grabbed || Math.hypot(event.clientX - grabbed.x, event.clientY - grabbed.y) > 4) return;
    const at = this.cell(event, canvas);
    if (at) this.lock(at, event.shiftKey);
  }

  // A click locks a row and a column; with shift in addition to those that are.
  lock(at, more) {
    const { rows, columns } = this.locked,
      held = rows.has(at.row) && columns.has(at.column);
    if (!more) [rows, columns].forEach((set) => set.clear());
    if (!held) {
      rows.add(at.row);
      columns.add(at.column);
    } else if (more) {
      rows.delete(at.row);
      columns.delete(at.column);
    }
    this.emit("locked", { rows: [...rows], columns: [...columns] });
    this.mark();
  }

  wheel(event, canvas) {
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.cell(event, canvas));
  }

  zoom(factor, about = null) {
    const { top, left, size } = this.window,
      whole = Math.max(this.view.queries, this.view.keys);
    const row = about ? about.row : top + size / 2,
      column = about ? about.column : left + size / 2;
    const next = Math.min(whole, Math.max(Math.min(8, whole), size * factor));
    this.look(row - ((row - top) * next) / size, column - ((column - left) * next) / size, next);
  }

  whole() {
    this.look(0, 0, Math.max(this.view.queries, this.view.keys));
  }

  look(top, left, size) {
    const whole = Math.max(this.view.queries, this.view.keys),
      within = (from) => Math.min(Math.max(0, from), whole - size);
    this.window = { top: within(top), left: within(left), size };
    this.draw();
    clearTimeout(this.asking);
    if (this.coarse()) this.asking = setTimeout(() => this.emit("window", this.asked()), 150);
  }

  // Whether the window is small enough for values token by token, and the buffer has not all of them.
  coarse() {
    const { bin, detail, queries, keys, tensors } = this.view,
      { top, left, size } = this.window;
    if (bin === 1 || size > EXACT) return false;
    if (!detail) return true;
    const [rows, columns] = tensors["detail.visible"].shape;
    const within = (from, start, count, whole) => from >= start && Math.min(from + size, whole) <= start + count;
    return !(within(top, detail.top, rows, queries) && within(left, detail.left, columns, keys));
  }

  // The window with half of it more on each side, in whole tokens.
  asked() {
    const { top, left, size } = this.window,
      from = (x) => Math.max(0, Math.floor(x - size / 2));
    return { top: from(top), left: from(left), size: Math.min(EXACT * 2, Math.ceil(size * 2)) };
  }

  key(event) {
    const heads = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (heads && event.target === this.root) this.emit("head", { layer: heads[0], head: heads[1] });
    else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.5);
    else if (event.key === "-") this.zoom(1.5);
    else if (event.key === "Escape") {
      this.locked = { rows: new Set(), columns: new Set() };
      this.emit("locked", { rows: [], columns: [] });
      this.whole();
    } else return;
    event.preventDefault();
  }
}

export function mount(host, buffer, emit) {
  return new View(host, buffer, emit);
}
