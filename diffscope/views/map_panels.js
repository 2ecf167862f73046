// The maps of one head: D, or A of standard attention, large and with token names; those it is made of beside it at half the size.
// One window, one crosshair, one scale.

const EDGE = 26; // pixels of the strips along a map
const WIDEST = 560; // pixels a side
const NAMES = { left: 78, below: 66 }; // pixels of the names of tokens
const MARGIN = 6; // pixels beside a map in which spans are marked
const GAP = 2; // pixels between what stands around a map
const LETTER = 10; // pixels of the letters of a name
const LINE = 8; // pixels from one name to the next
const LEADER = 6; // pixels of the line from a name to its token
const FEW = 8; // tokens of the answer that are named in any case
const LETTERS_OF_NAME = 10;
const INSET = 84; // pixels a side of the whole map that says where a window is
const NARROW = 560; // pixels below which the smaller maps stand under the large one
const LOCKED = "rgb(0, 158, 115)";
const POINTED = "rgb(128, 128, 128)";

// Where the names of tokens stand along an edge of so many pixels: where the tokens are, or else one line after another.
function apart(tokens, place, side) {
  const lines = tokens.map(place);
  lines.forEach((line, i) => (lines[i] = Math.max(line, i ? lines[i - 1] + LINE : LINE / 2)));
  for (let i = lines.length - 1, end = side - LINE / 2; i >= 0 && lines[i] > end; i--, end -= LINE) lines[i] = end;
  return new Map(tokens.map((token, i) => [token, lines[i]]));
}

class MapPanels {
  constructor(view) {
    this.view = view;
    this.box = element("div", { display: "flex", flexWrap: "wrap", gap: "10px 14px", alignItems: "flex-start" });
    this.panels = [];
  }

  rebuild() {
    const shown = this.view.panels;
    const names = shown.map(({ name, title }) => name + title).join();
    if (names === this.names) return;
    this.names = names;
    this.drawn = "";
    this.panels = shown.map((panel) => this.panel(panel));
    this.main = this.panels.at(-1);
    const others = element("div", { display: "flex", flexWrap: "wrap", gap: "10px", flex: "0 1 auto" });
    others.append(...this.panels.slice(0, -1).map(({ box }) => box));
    this.others = others;
    this.box.replaceChildren(this.main.box, ...(this.panels.length > 1 ? [others] : []));
  }

  panel({ name, title, short, scale }) {
    const box = element("figure", { margin: 0, minWidth: 0 });
    const stack = element("div", { position: "relative", touchAction: "none" });
    const map = element("canvas", { display: "block", imageRendering: "pixelated" }, { "data-map": name, role: "img" });
    map.setAttribute("aria-label", `${title}, queries down and keys across`);
    const over = element("canvas", { position: "absolute", left: 0, top: 0, cursor: "crosshair" });
    const edge = (title) => element("canvas", { display: "block" }, { title, "aria-hidden": "true" });
    const own = "this strip goes to its own largest value in the window";
    const entropy = edge(`entropy of each query's row; ${own}`);
    const received = edge(`what each key receives from all queries; ${own}`);
    const [rows, columns] = [edge("queries"), edge("keys")];
    const [beside, beneath] = [edge("spans of queries"), edge("spans of keys")];
    beside.dataset.spans = beneath.dataset.spans = name;
    const bar = new ColourBar();
    stack.append(map, over);
    const frame = element("div", { display: "grid", gap: `${GAP}px`, justifyContent: "start" });
    const under = [beneath, received, columns, bar.box];
    [rows, beside, stack, entropy].forEach((part, at) => (part.style.gridArea = `1 / ${at + 1}`));
    under.forEach((part, at) => (part.style.gridArea = `${at + 2} / 3`));
    frame.append(rows, beside, stack, entropy, ...under);
    box.append(element("figcaption", { marginBottom: "2px" }, {}, title), frame);
    listen(
      over,
      this.view,
      (event) => this.tokens(event, over),
      () => [this.view.rows / over.clientHeight, this.view.columns / over.clientWidth],
    );
    const edges = { entropy, received, rows, columns, beside, beneath };
    return { name, short, title, scale, box, map, over, ...edges, bar, image: null, detail: null };
  }

  // The large map takes what two smaller ones beside it leave; on a narrow page, and in a group, they stand below it.
  layout(width) {
    const strips = EDGE + MARGIN + 3 * GAP;
    const { group } = this.view.data;
    const below = group || width < NARROW;
    const room = this.room() - NAMES.left - strips;
    const side = Math.max(60, Math.min(WIDEST, Math.floor(below || this.panels.length === 1 ? room : (room - strips - 20) / 1.5)));
    const half = Math.floor(((group ? side + NAMES.left + strips : width) - 10) / 2);
    const small = below ? Math.max(60, half - strips - 4) : Math.floor(side / 2);
    const drawn = `${side} ${small} ${window.devicePixelRatio}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    Object.assign(this.others.style, { flexDirection: below ? "row" : "column" });
    for (const panel of this.panels) {
      const { map, over, entropy, received, rows, columns, beside, beneath } = panel;
      const main = panel === this.main;
      panel.side = main ? side : small;
      sized(map, panel.side, panel.side);
      sized(over, panel.side, panel.side);
      sized(entropy, EDGE, panel.side);
      sized(received, panel.side, EDGE);
      sized(beside, MARGIN, panel.side);
      sized(beneath, panel.side, MARGIN);
      sized(rows, main ? NAMES.left : 0, main ? side : 0);
      sized(columns, main ? side : 0, main ? NAMES.below : 0);
    }
  }

  // Pixels that the large map and its edges may take: as many in every view of a group, so that all are as large.
  room() {
    return Math.min(...grouped(this.view).flatMap(({ width }) => (width ? [width] : [])));
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
      panel.bar.draw(ramp, { ...words, width: panel.side });
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
    const { rows: shown, columns: across } = this.view;
    const { top, left } = this.view.window;
    const bins = [left, top, across, shown].map((tokens) => tokens / data.bin);
    for (const { name, scale, map, image, detail, entropy, received } of this.panels) {
      const context = map.getContext("2d");
      context.fillStyle = dark ? data.look.unseenDark : data.look.unseen;
      context.fillRect(0, 0, map.width, map.height);
      context.imageSmoothingEnabled = false;
      context.drawImage(image, ...bins, 0, 0, map.width, map.height);
      if (detail) {
        const [rows, columns] = data.detail.shape;
        const [wide, high] = [map.width / across, map.height / shown]; // pixels of a cell
        const place = [(data.detail.left - left) * wide, (data.detail.top - top) * high, columns * wide, rows * high];
        context.fillRect(...place); // keys that are not seen are clear, and the bins below not theirs
        context.drawImage(detail, ...place);
      }
      this.edge(received, data.tensors["received_" + name], left, false, scale);
      this.edge(entropy, data.tensors["entropy_" + name], top, true, scale);
    }
    this.panels.forEach((panel) => this.markSpans(panel));
    this.mark();
  }

  // Tokens along an edge of the large map: those that have to be named, moved apart as far as needed, and of the others as many as fit.
  writeNames(canvas, count, from, down) {
    const { data, ink, dark } = this.view;
    const size = this.view.along(count);
    const ratio = globalThis.devicePixelRatio || 1;
    const { side } = this.main;
    const pixels = side / size;
    const exact = (at) => (at + 0.5 - from) * pixels;
    const within = (place) => Math.min(Math.max(place, LINE / 2), side - LINE / 2); // so that no name is cut off
    const inside = (at) => at >= from - 0.5 && at < Math.min(count, from + size);
    const due = this.due(down).filter(inside).slice(0, Math.floor(side / LINE));
    const places = apart(due.sort((a, b) => a - b), exact, side);
    const first = Math.max(0, Math.ceil(from - 0.5));
    for (let at = first; inside(at); at++) {
      const place = within(exact(at));
      if (!places.has(at) && [...places.values()].every((other) => Math.abs(other - place) >= LINE)) places.set(at, place);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.font = `${LETTER}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    if (down) context.translate(NAMES.left, 0);
    else context.rotate(-Math.PI / 2); // along both edges a name ends at 0, and its token lies at (0, place)
    for (const [at, place] of places) {
      const colour = this.colourOf(at, down);
      context.fillStyle = context.strokeStyle = colour ? onPage(colour, dark) : ink;
      context.fillText(named((down ? data.tokens : data.keyTokens)[at]), -LEADER, place);
      context.beginPath();
      context.moveTo(1 - LEADER, place);
      context.lineTo(0, exact(at));
      context.stroke();
    }
  }

  // Tokens that are named in any case, the most wanted first: those pointed at and locked, the query that is read, the
  // answer's, the first of each span.
  due(down) {
    const { data, locked, pointer } = this.view;
    const read = down ? pointer?.row : pointer?.column;
    const asked = down && data.query != null ? [data.query] : [];
    const spans = down ? data.spans : data.keySpans;
    const begun = spans.flatMap(({ ranges }) => ranges.map(([start]) => start));
    const answer = spans.filter(({ name }) => name === "answer").flatMap(({ ranges }) => ranges.flatMap(tokensOf));
    return [...new Set([...(read == null ? [] : [read]), ...locked[down ? "rows" : "columns"], ...asked, ...answer.slice(0, FEW), ...begun])];
  }

  // The colour of the span in which a token is, if it is in any.
  colourOf(at, down) {
    const holds = ({ ranges }) => ranges.some(([start, stop]) => start <= at && at < stop);
    const { spans, keySpans } = this.view.data;
    return (down ? spans : keySpans).findLast(holds)?.colour;
  }

  // Values of tokens along an edge, each pixel the largest of those that fall on it.
  edge(canvas, values, from, down, scale) {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!values) return;
    const { data, options } = this.view;
    const size = down ? this.view.rows : this.view.columns;
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

  // Spans along a map and an arrow at the query that is read, outside it, so that they cover none of its cells.
  markSpans({ beside, beneath }) {
    const { data, window, dark } = this.view;
    for (const [canvas, from, down, spans, count] of [
      [beside, window.top, true, data.spans, this.view.rows],
      [beneath, window.left, false, data.keySpans, this.view.columns],
    ]) {
      const context = canvas.getContext("2d");
      const scale = (down ? canvas.height : canvas.width) / count;
      context.clearRect(0, 0, canvas.width, canvas.height);
      for (const { colour, ranges } of spans) {
        context.fillStyle = onPage(colour, dark);
        for (const [start, stop] of ranges) {
          const [at, long] = [(start - from) * scale, Math.max(2, (stop - start) * scale)];
          if (down) context.fillRect(0, at, canvas.width, long);
          else context.fillRect(at, 0, long, canvas.height);
        }
      }
      if (!down || data.query == null) continue;
      context.fillStyle = this.view.ink;
      const [at, half] = [(data.query + 0.5 - from) * scale, (canvas.width * 2) / 3];
      polygon(context, [0, at - half], [canvas.width, at], [0, at + half]);
    }
  }

  // Locks and the crosshair: over the maps, so that the pointer never waits for them to be drawn anew, and as lines on either side
  // of a row or column, whose own cells they leave free.
  mark() {
    const { data, window, locked, pointer } = this.view;
    const bin = pointer?.row != null && pointer.column != null ? placeOf(data, pointer).bin : 1;
    for (const { over } of this.panels) {
      const context = over.getContext("2d");
      context.clearRect(0, 0, over.width, over.height);
      const band = (start, count, across, colour) => {
        const scale = across ? over.height / this.view.rows : over.width / this.view.columns;
        const from = (start - (across ? window.top : window.left)) * scale;
        const line = Math.round(globalThis.devicePixelRatio || 1);
        context.fillStyle = colour;
        for (const at of [from - line, from + Math.max(1, count * scale)]) {
          if (across) context.fillRect(0, at, over.width, line);
          else context.fillRect(at, 0, line, over.height);
        }
      };
      for (const row of locked.rows) band(row, 1, true, LOCKED);
      for (const column of locked.columns) band(column, 1, false, LOCKED);
      if (pointer?.row != null) band(Math.floor(pointer.row / bin) * bin, bin, true, POINTED);
      if (pointer?.column != null) band(Math.floor(pointer.column / bin) * bin, bin, false, POINTED);
    }
    this.writeNames(this.main.rows, data.queries, window.top, true);
    this.writeNames(this.main.columns, data.keys, window.left, false);
    this.inset();
  }

  // The whole map in a corner of the large one, where few weights are, with a frame around the window.
  inset() {
    const { data, dark, ink, longest, rows, columns, window: { top, left, size } } = this.view;
    const { over, image, side } = this.main;
    if (size >= longest || side < 3 * INSET || !image) return;
    const ratio = over.width / side;
    const [long, x, y] = [INSET * ratio, over.width - (INSET + 6) * ratio, 6 * ratio];
    const context = over.getContext("2d");
    context.fillStyle = dark ? data.look.unseenDark : data.look.unseen;
    context.fillRect(x, y, long, long);
    context.drawImage(image, 0, 0, data.keys / data.bin, data.queries / data.bin, x, y, long, long);
    context.strokeStyle = ink;
    context.lineWidth = ratio;
    context.strokeRect(x, y, long, long);
    context.lineWidth = 2 * ratio;
    const [across, down] = [long / data.keys, long / data.queries];
    context.strokeRect(x + left * across, y + top * down, Math.max(4, columns * across), Math.max(4, rows * down));
  }

  // What is under the pointer: both tokens, and the value of every map.
  read({ row, column }) {
    const { data, options } = this.view;
    if (row == null || column == null) return row == null ? `key ${token(data.keyTokens, column)}` : `query ${token(data.tokens, row)}`;
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
      `query ${token(data.tokens, row)} → key ${token(data.keyTokens, column)}: ${unseen ? "" : `${kind}${bins}:   `}${values}`,
      `key receives from all queries:   ${edge("received", column)}`,
      `entropy of the row, nats:   ${edge("entropy", row)}`,
    ].join("\n");
  }

  tokens(event, canvas) {
    const box = canvas.getBoundingClientRect();
    const { rows, columns, window: { top, left } } = this.view;
    const row = Math.floor(top + ((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(left + ((event.clientX - box.left) / box.width) * columns);
    const inside = row >= 0 && column >= 0 && row < this.view.data.queries && column < this.view.data.keys;
    return inside ? { row, column } : null;
  }
}
