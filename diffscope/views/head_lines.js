// Another way to draw the same attention: tokens in two columns, queries left and keys right, with lines between each query and its
// strongest keys, for any heads of the layer.

const ROW = 15; // pixels of a token, as long as they fit
const READABLE = 9; // pixels of a token at least, where every one is written
const TALLEST = 1350; // pixels in which all tokens may be written
const LOW = 640; // pixels where they are not
const SPARSE = 36; // pixels between those that are written then
const BROADEST = 1000;
const FAINTEST = 0.04; // places on the scale below which a line is not drawn

class HeadLines {
  constructor(view) {
    this.view = view;
    this.box = element("div", {});
    this.chips = element("div", {}, { class: "bar", role: "group", "aria-label": "Heads whose lines are drawn" });
    this.note = element("div", {}, { class: "faint" });
    const stack = element("div", { position: "relative", touchAction: "none", margin: "4px 0" });
    this.under = element("canvas", { display: "block" }, { "data-lines": "", role: "img" });
    this.over = element("canvas", { position: "absolute", left: 0, top: 0, cursor: "crosshair" });
    stack.append(this.under, this.over);
    this.box.append(this.chips, this.note, stack);
    listen(
      this.over,
      view,
      (event) => this.tokens(event),
      () => [view.rows / this.high, view.columns / this.high],
    );
  }

  // Heads whose lines are drawn: those that were chosen, else that of the maps.
  get shown() {
    const { data, heads } = this.view;
    return heads ? heads.filter((head) => head < data.heads) : [data.head];
  }

  colour(head) {
    const { heads } = this.view.data.look;
    return onPage(heads[head % heads.length], this.view.dark);
  }

  rebuild() {
    const { data } = this.view;
    this.under.setAttribute("aria-label", `${data.title}: lines from queries on the left to their strongest keys on the right`);
    if (this.heads?.length === data.heads) return;
    const all = Array.from({ length: data.heads }, (_, head) => head);
    this.heads = all.map((head) => this.chip(head));
    this.chips.replaceChildren(
      element("span", {}, {}, "Heads"),
      ...this.heads,
      button("all", "draw the lines of every head", () => this.view.chooseHeads(all), "All heads"),
      button("only this", "draw the lines of the head of the maps alone", () => this.view.chooseHeads(null), "Only this head"),
    );
  }

  chip(head) {
    const change = () => {
      const others = this.shown.filter((each) => each !== head);
      this.view.chooseHeads(this.shown.includes(head) ? others : [...others, head].sort((a, b) => a - b));
    };
    const box = button(String(head), `draw the lines of head ${head} of this layer, or not`, change, `Head ${head}`);
    box.style.borderWidth = "2px";
    return box;
  }

  layout(width) {
    const { size } = this.view.window;
    this.fits = size * READABLE <= TALLEST;
    this.step = this.fits ? Math.max(READABLE, Math.min(ROW, LOW / size)) : LOW / size;
    this.wide = Math.min(width, BROADEST);
    this.high = Math.ceil(this.step * size);
    this.column = Math.max(70, Math.min(180, this.wide * 0.3)); // pixels of a column of tokens
    for (const canvas of [this.under, this.over]) sized(canvas, this.wide, this.high);
  }

  paint() {
    this.heads.forEach((box, head) => {
      const on = this.shown.includes(head);
      box.setAttribute("aria-pressed", on);
      box.style.borderColor = this.colour(head);
      box.style.background = on ? `color-mix(in srgb, ${this.colour(head)} 45%, transparent)` : "";
    });
    this.draw();
  }

  // The tokens of the window, and the lines of all queries if they fit.
  draw() {
    this.layout(this.view.width);
    const context = this.begin(this.under);
    this.marks(context);
    if (this.fits) this.lines(context, null);
    else this.write(context, null, SPARSE);
    this.note.textContent = this.words();
    this.mark();
  }

  // The lines of what is pointed at or locked, over the others, which fade.
  mark() {
    const context = this.begin(this.over);
    const chosen = this.chosen();
    this.under.style.opacity = chosen && this.fits ? 0.25 : 1;
    if (this.fits) this.write(context, null, 0);
    if (chosen) this.write(context, this.lines(context, chosen), 0);
  }

  // The queries, or else the keys, that are pointed at or locked; of more tokens than fit the last query, for want of others.
  chosen() {
    const { pointer, locked, window, data } = this.view;
    const rows = new Set(locked.rows);
    const columns = new Set(locked.rows.size ? [] : locked.columns);
    if (pointer?.row != null) rows.add(pointer.row);
    else if (pointer?.column != null) columns.add(pointer.column);
    if (!rows.size && !columns.size) {
      if (this.fits) return null;
      rows.add(Math.min(data.queries, Math.floor(window.top + this.view.rows)) - 1);
    }
    return { rows, columns };
  }

  begin(canvas) {
    const context = canvas.getContext("2d");
    const ratio = canvas.width / this.wide;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.wide, this.high);
    return context;
  }

  // Pixels down of the middle of a query, and of a key: both columns are as high.
  yOfQuery(at) {
    return ((at - this.view.window.top + 0.5) * this.high) / this.view.rows;
  }

  yOfKey(at) {
    return ((at - this.view.window.left + 0.5) * this.high) / this.view.columns;
  }

  // Draws the lines of some queries and keys, by default of all; the tokens at their ends.
  lines(context, chosen) {
    const ends = { rows: new Set(chosen?.rows), columns: new Set(chosen?.columns) };
    const { options, limit } = this.view;
    const { place } = SCALES[options.scale];
    const right = this.wide - this.column;
    const middle = (this.column + right) / 2;
    for (const link of this.links()) {
      if (chosen && !chosen.rows.has(link.row) && !chosen.columns.has(link.column)) continue;
      if (!chosen && !this.holds(link)) continue;
      const at = Math.min(1, place(Math.min(1, Math.abs(SCALES[options.scale].shares ? link.share : link.weight) / limit)));
      if (!(at > FAINTEST)) continue;
      ends.rows.add(link.row);
      ends.columns.add(link.column);
      const from = this.yOfQuery(link.row);
      const to = Math.min(this.high, Math.max(0, this.yOfKey(link.column))); // outside the window: at its end
      context.strokeStyle = this.colour(link.head);
      context.globalAlpha = 0.04 + 0.96 * at * at;
      context.lineWidth = 0.5 + 2 * at;
      context.setLineDash(link.weight < 0 ? [4, 3] : []);
      context.beginPath();
      context.moveTo(this.column + 6, from);
      context.bezierCurveTo(middle, from, middle, to, right - 6, to);
      context.stroke();
    }
    context.globalAlpha = 1;
    context.setLineDash([]);
    return ends;
  }

  // Each of the shown heads' links, from the queries of the window.
  *links() {
    const { data, window, options } = this.view;
    if (!data.lines) return;
    const { top, queries, count } = data.lines;
    const { "lines.key": keys, "lines.weight": weights, "lines.mass": mass } = data.tensors;
    const first = Math.max(top, Math.floor(window.top));
    const stop = Math.min(top + queries, Math.ceil(window.top + this.view.rows));
    for (const head of this.shown)
      for (let row = first; row < stop; row++) {
        const query = head * queries + row - top;
        for (let at = query * count; at < (query + 1) * count; at++) {
          if (keys[at] < 0 || (keys[at] === 0 && !options.sink)) continue;
          yield { head, row, column: keys[at], weight: weights[at], share: weights[at] / mass[query] };
        }
      }
  }

  // Whether the window has the key.
  holds({ column }) {
    const { left } = this.view.window;
    return column + 0.5 >= left && column + 0.5 <= left + this.view.columns;
  }

  // Spans and locks beside the tokens.
  marks(context) {
    const { data, window, dark, rows, columns } = this.view;
    const bars = (spans, from, count, x) => {
      const step = this.high / count;
      for (const { colour, ranges } of spans) {
        context.fillStyle = onPage(colour, dark);
        for (const [start, stop] of ranges)
          context.fillRect(x, (start - from) * step, 4, Math.max(1, (stop - start) * step - 1));
      }
    };
    bars(data.spans, window.top, rows, this.column + 1);
    bars(data.keySpans, window.left, columns, this.wide - this.column - 5);
    context.fillStyle = "rgba(128, 128, 128, 0.5)";
    context.fillRect(this.column + 5, 0, 1, this.high);
    context.fillRect(this.wide - this.column - 6, 0, 1, this.high);
  }

  // The texts of some tokens, by default of all, which are fainter; none closer to the one above it than can be read.
  write(context, ends, gap) {
    const { data, window, locked, ink } = this.view;
    const size = Math.min(12, Math.max(READABLE, this.step * 0.85));
    context.font = `${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.globalAlpha = ends ? 1 : 0.7;
    const column = (some, from, tokens, place, align, x, held) => {
      const all = Array.from({ length: Math.ceil(window.size) + 1 }, (_, i) => Math.floor(from) + i);
      let last = -Infinity;
      context.textAlign = align;
      for (const at of some ? [...some].sort((a, b) => a - b) : all) {
        const y = place(at);
        if (at >= tokens.length || Math.abs(y - this.high / 2) > (this.high - size) / 2 + 1 || y - last < Math.max(gap, size * 0.9))
          continue;
        last = y;
        context.fillStyle = held.has(at) ? "#009e73" : ink;
        context.fillText(this.fit(context, tokens[at]), x, y);
      }
    };
    const { tokens, keyTokens } = data;
    column(ends?.rows, window.top, tokens, (at) => this.yOfQuery(at), "right", this.column - 3, locked.rows);
    column(ends?.columns, window.left, keyTokens, (at) => this.yOfKey(at), "left", this.wide - this.column + 3, locked.columns);
    context.globalAlpha = 1;
  }

  // As much of a token as its column has room for, with white space that can be seen.
  fit(context, text) {
    let shown = visible(text);
    while (shown.length > 2 && context.measureText(shown).width > this.column - 8) shown = shown.slice(0, -2) + "…";
    return shown;
  }

  words() {
    const { data } = this.view;
    if (!data.lines && data.bin === 1) return "The strongest keys did not come with this view.";
    if (!this.view.hasLines())
      return `Of ${data.queries} tokens, lines are drawn in windows of at most ${EXACT - 2}: zoom in. (A page of its own has them of shorter prompts only.)`;
    const { count, map } = data.lines;
    const what = `The ${count} strongest keys of each query by |${map}|; width and opacity follow the scale, dashed is negative.`;
    const outside =
      "Of a query that is pointed at or locked, lines to keys outside the window end at its edge; of others they are not drawn.";
    const many =
      "More tokens than fit: these are the last query's lines; point at a token, or lock it with a click, to see others.";
    const whole = this.view.columns >= data.keys;
    return [what, whole ? "" : outside, this.fits ? "" : many].filter(Boolean).join(" ");
  }

  // The strongest keys of the query under the pointer, or the queries that hold the key.
  read({ row, column }) {
    const { data, options } = this.view;
    const { shares } = SCALES[options.scale];
    const most = this.shown.length > 1 ? 3 : 8;
    const by = row != null ? (link) => link.row === row : (link) => link.column === column;
    const links = [...this.links()].filter(by);
    const value = ({ weight, share }) => `${number(weight)}${shares ? ` · ${percent(share)}` : ""}`;
    const lines = this.shown.map((head) => {
      const own = links.filter((link) => link.head === head).sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
      const ends = own.slice(0, most).map((link) => `${row != null ? token(data.keyTokens, link.column) : token(data.tokens, link.row)} ${value(link)}`);
      return `${headName(data.layer, head)}:   ${ends.join("   ") || "none"}`;
    });
    const kind = shares ? "weights · shares of the row's Σ|x|" : "weights";
    const place =
      row != null
        ? `query ${token(data.tokens, row)}, its strongest keys`
        : `key ${token(data.keyTokens, column)}, queries of whose strongest it is`;
    return [`${place}, ${kind} of ${data.lines?.map ?? "D"}:`, ...lines].join("\n");
  }

  // Left of the middle queries, right of it keys.
  tokens(event) {
    const box = this.over.getBoundingClientRect();
    const { data, window, rows, columns } = this.view;
    const down = (event.clientY - box.top) / box.height;
    const left = event.clientX - box.left < box.width / 2;
    const at = Math.floor(left ? window.top + down * rows : window.left + down * columns);
    if (at < 0 || at >= (left ? data.queries : data.keys)) return null;
    return left ? { row: at, column: null } : { row: null, column: at };
  }
}
