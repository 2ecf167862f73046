// The maps A1, A2, λ·A2 and D of one head side by side: one window, one crosshair, one scale.

const EDGE = 26; // pixels of the strips along a map
const WIDEST = 640; // pixels a side
const LOCKED = "rgba(0, 158, 115, 0.35)";
const POINTED = "rgba(128, 128, 128, 0.45)";

class MapPanels {
  constructor(view) {
    this.view = view;
    this.box = element("div", { display: "grid", gap: "10px" });
    this.panels = [];
  }

  rebuild() {
    const names = this.view.data.panels.map(({ name, title }) => name + title).join();
    if (names === this.names) return;
    this.names = names;
    this.side = 0;
    this.panels = this.view.data.panels.map((panel) => this.panel(panel));
    this.box.replaceChildren(...this.panels.map(({ box }) => box));
  }

  panel({ name, title, scale }) {
    const box = element("figure", { margin: 0, minWidth: 0 });
    const stack = element("div", { position: "relative", touchAction: "none" });
    const map = element("canvas", { display: "block", imageRendering: "pixelated" }, { "data-map": name, role: "img" });
    map.setAttribute("aria-label", `${title}, queries down and keys across`);
    const over = element("canvas", { position: "absolute", left: 0, top: 0, cursor: "crosshair" });
    const edge = (title) => element("canvas", { display: "block" }, { title, "aria-hidden": "true" });
    const entropy = edge("entropy of each query's row");
    const received = edge("what each key receives from all queries");
    const bar = new ColourBar();
    stack.append(map, over);
    const frame = element("div", { display: "grid", gridTemplateColumns: "auto auto", gap: "2px", justifyContent: "start" });
    frame.append(stack, entropy, received, element("div", {}), bar.box);
    box.append(element("figcaption", { marginBottom: "2px" }, {}, title), frame);
    listen(
      over,
      this.view,
      (event) => this.tokens(event, over),
      () => this.view.window.size / this.side,
    );
    return { name, title, scale, box, map, over, entropy, received, bar, image: null, detail: null };
  }

  // Square maps at any width: two in a row below 700 pixels.
  layout(width) {
    const columns = Math.min(this.panels.length, width < 700 ? 2 : 4);
    const room = Math.floor((width - 10 * (columns - 1)) / columns) - EDGE - 2;
    const side = Math.min(WIDEST, Math.max(60, room));
    if (side === this.side) return;
    this.side = side;
    this.box.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const { map, over, entropy, received } of this.panels) {
      sized(map, side, side);
      sized(over, side, side);
      sized(entropy, EDGE, side);
      sized(received, side, EDGE);
    }
  }

  paint() {
    const { data, options, limit, ramps } = this.view;
    for (const panel of this.panels) {
      const colour = colouring(ramps[panel.scale], options.scale, limit);
      panel.image = this.picture(panel.name, colour, "");
      panel.detail = data.detail ? this.picture(panel.name, colour, "detail.") : null;
      const clipped = this.exceeds(panel.name, limit);
      const ramp = ramps[panel.scale];
      const words = legend(ramp, { scale: options.scale, limit, clipped, title: panel.title });
      panel.bar.draw(ramp, { ...words, width: this.side });
    }
    this.draw();
  }

  // Whether a value that is seen lies beyond the end of the colours.
  exceeds(name, limit) {
    const { data, options, part } = this.view;
    const [, columns] = shapeOf(data, part);
    const first = part ? data.detail.left : 0;
    const values = valuesOf(data, part, name, SCALES[options.scale].shares);
    return values.some((value, i) => Math.abs(value) > limit && !this.hidden(first + (i % columns)));
  }

  hidden(column) {
    return column === 0 && !this.view.options.sink;
  }

  // All bins of a map, one pixel each; those that no query sees stay clear.
  picture(name, colour, part) {
    const { data, options } = this.view;
    const [rows, columns] = shapeOf(data, part);
    const values = valuesOf(data, part, name, SCALES[options.scale].shares);
    const first = part ? data.detail.left : 0; // key of the first column
    const canvas = new OffscreenCanvas(columns, rows);
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < values.length; i++)
      if (!Number.isNaN(values[i]) && !this.hidden(first + (i % columns))) pixels[i] = colour(values[i]);
    context.putImageData(image, 0, 0);
    return canvas;
  }

  draw() {
    const { data, dark } = this.view;
    const { top, left, size } = this.view.window;
    const bins = [left, top, size, size].map((tokens) => tokens / data.bin);
    for (const { name, scale, map, image, detail, entropy, received } of this.panels) {
      const context = map.getContext("2d");
      context.fillStyle = dark ? data.look.unseenDark : data.look.unseen;
      context.fillRect(0, 0, map.width, map.height);
      context.imageSmoothingEnabled = false;
      context.drawImage(image, ...bins, 0, 0, map.width, map.height);
      if (detail) {
        const [rows, columns] = data.detail.shape;
        const pixels = map.width / size;
        const from = [(data.detail.left - left) * pixels, (data.detail.top - top) * pixels];
        context.fillRect(...from, columns * pixels, rows * pixels); // keys that are not seen are clear, and the bins below not theirs
        context.drawImage(detail, ...from, columns * pixels, rows * pixels);
      }
      this.edge(received, data.tensors["received_" + name], left, false, scale);
      this.edge(entropy, data.tensors["entropy_" + name], top, true, scale);
    }
    this.mark();
  }

  // Values of tokens along an edge, each pixel the largest of those that fall on it.
  edge(canvas, values, from, down, scale) {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!values) return;
    const { data, window, options } = this.view;
    const { size } = window;
    const [long, deep] = down ? [canvas.height, canvas.width] : [canvas.width, canvas.height];
    const first = options.sink || down ? 0 : 1;
    const stop = Math.min(values.length, from + size);
    let most = 0;
    for (let i = Math.max(first, Math.floor(from)); i < stop; i++) most = Math.max(most, Math.abs(values[i]) || 0);
    if (!most) return;
    for (let pixel = 0; pixel < long; pixel++) {
      const start = Math.floor(from + (pixel / long) * size);
      const end = Math.min(values.length, Math.max(start + 1, Math.floor(from + ((pixel + 1) / long) * size)));
      let value = 0;
      for (let i = Math.max(start, first); i < end; i++) if (Math.abs(values[i]) > Math.abs(value)) value = values[i];
      const depth = Math.round((Math.abs(value) / most) * deep);
      const negative = scale === "orange" || (scale === "diverging" && value < 0);
      context.fillStyle = negative ? data.look.orange[5] : data.look.blue[5];
      if (down) context.fillRect(0, pixel, depth, 1);
      else context.fillRect(pixel, 0, 1, depth);
    }
  }

  // Spans, locks and the crosshair: over the maps, so that the pointer never waits for them to be drawn anew.
  mark() {
    const { data, window, locked, pointer, dark } = this.view;
    const bin = pointer?.row != null && pointer.column != null ? placeOf(data, pointer).bin : 1;
    for (const { over } of this.panels) {
      const context = over.getContext("2d");
      const scale = over.width / window.size;
      context.clearRect(0, 0, over.width, over.height);
      const band = (start, count, across, colour) => {
        const from = (start - (across ? window.top : window.left)) * scale;
        const thick = Math.max(1, count * scale);
        context.fillStyle = colour;
        if (across) context.fillRect(0, from, over.width, thick);
        else context.fillRect(from, 0, thick, over.height);
      };
      for (const { colour, ranges } of data.spans) {
        context.fillStyle = onPage(colour, dark);
        for (const [start, stop] of ranges) {
          const long = Math.max(2, (stop - start) * scale);
          context.fillRect((start - window.left) * scale, over.height - 4, long, 4);
          context.fillRect(0, (start - window.top) * scale, 4, long);
        }
      }
      for (const row of locked.rows) band(row, 1, true, LOCKED);
      for (const column of locked.columns) band(column, 1, false, LOCKED);
      if (pointer?.row != null) band(Math.floor(pointer.row / bin) * bin, bin, true, POINTED);
      if (pointer?.column != null) band(Math.floor(pointer.column / bin) * bin, bin, false, POINTED);
    }
  }

  // What is under the pointer: both tokens, and the value of every map.
  read({ row, column }) {
    const { data, options } = this.view;
    if (row == null || column == null) return row == null ? `key ${token(data, column)}` : `query ${token(data, row)}`;
    const { part, cell, bin } = placeOf(data, { row, column });
    const { shares } = SCALES[options.scale];
    const value = ({ name, short }) => {
      const share = shares ? ` · ${percent(valuesOf(data, part, name, true)[cell])}` : "";
      return `${short} ${number(data.tensors[part + name][cell])}${share}`;
    };
    const unseen = Number.isNaN(data.tensors[part + data.panels[0].name][cell]);
    const values = unseen ? "not visible to this query" : data.panels.map(value).join("   ");
    const kind = shares ? "weights · shares of the row's Σ|x|" : "weights";
    const bins = bin > 1 ? `, each the largest of ${bin} × ${bin}` : "";
    const edge = (kind, at) =>
      data.panels
        .filter(({ name }) => data.tensors[`${kind}_${name}`])
        .map(({ name, short }) => `${short} ${number(data.tensors[`${kind}_${name}`][at])}`)
        .join("   ");
    return [
      `query ${token(data, row)} → key ${token(data, column)}: ${unseen ? "" : `${kind}${bins}:   `}${values}`,
      `key receives from all queries:   ${edge("received", column)}`,
      `entropy of the row, nats:   ${edge("entropy", row)}`,
    ].join("\n");
  }

  tokens(event, canvas) {
    const box = canvas.getBoundingClientRect();
    const { top, left, size } = this.view.window;
    const row = Math.floor(top + ((event.clientY - box.top) / box.height) * size);
    const column = Math.floor(left + ((event.clientX - box.left) / box.width) * size);
    const inside = row >= 0 && column >= 0 && row < this.view.data.queries && column < this.view.data.keys;
    return inside ? { row, column } : null;
  }
}
