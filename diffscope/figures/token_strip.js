// A prompt as running text, each token on the colour of what one query gives it. Drawn from plain data (token_strip.py).
//
// Hosts call mount(element, data, emit); what it returns takes further data (update) and is told to go (leave). A click emits
// "query" with a position; tokens that are selected with the mouse, or with shift and arrows, and then named, emit "marked".

const NAMES = ["answer", "needles", "query"];

function element(tag, style, attributes = {}) {
  const node = document.createElement(tag);
  Object.assign(node.style, style);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// The colour of a share from −1 to 1: its root says how far along the ramp, so that a few per cent can be seen.
function colourOf(share, look, dark) {
  const ramp = share < 0 ? look.orange : look.blue;
  const stops = dark ? [look.dark, ...ramp.slice(3).reverse()] : ramp;
  const at = Math.sqrt(Math.min(1, Math.abs(share))) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const upper = channels(stops[low + 1]);
  return channels(stops[low]).map((from, c) => Math.round(from + (upper[c] - from) * (at - low)));
}

class Strip {
  constructor(host, data, emit) {
    this.host = host;
    this.emit = emit || (() => {});
    this.first = null;
    this.last = null;
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.paint();
    this.scheme.addEventListener("change", this.redraw);
    this.build();
    this.update(data);
  }

  leave() {
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
    const font = "12.5px/1.8 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
    this.root = element("div", { color: "inherit", fontSize: "13px" });
    this.bar = element("div", { display: "flex", flexWrap: "wrap", gap: "6px 14px", alignItems: "center", marginBottom: "4px" });
    this.legend = element("canvas", { width: "160px", height: "10px" }, { width: 160, height: 10, "aria-hidden": "true" });
    this.words = element("span", { opacity: 0.8 });
    this.spans = element("span", { display: "inline-flex", flexWrap: "wrap", gap: "4px 12px", opacity: 0.85 });
    this.naming = element("span", { display: "none", gap: "6px", alignItems: "center" });
    this.readout = element("span", { minWidth: "16em", fontVariantNumeric: "tabular-nums" }, { "aria-live": "polite" });
    this.bar.append(this.legend, this.words, this.spans, this.naming, this.readout);
    this.text = element("div", { font, wordBreak: "break-word", maxHeight: "17em", overflowY: "auto", userSelect: "none" });
    this.text.setAttribute("role", "listbox");
    this.text.setAttribute("aria-label", "Tokens of the prompt");
    this.root.append(this.bar, this.text);
    this.host.replaceChildren(this.root);
    this.text.addEventListener("pointerdown", (event) => this.begin(event));
    this.text.addEventListener("pointermove", (event) => this.over(event));
    this.text.addEventListener("pointerup", (event) => this.end(event));
    this.text.addEventListener("keydown", (event) => this.key(event));
  }

  update(data) {
    const same = this.data && this.data.prompt === data.prompt;
    this.data = data;
    if (!same) {
      this.cells = data.tokens.map((token, at) => this.cell(token, at));
      const breaks = (token) => (token.includes("\n") ? [element("br", {})] : []);
      this.text.replaceChildren(...this.cells.flatMap((cell, at) => [cell, ...breaks(data.tokens[at]), element("wbr", {})]));
      this.select(null, null);
    }
    this.paint();
  }

  cell(token, at) {
    const style = { padding: "1px", borderRadius: "2px", cursor: "pointer", unicodeBidi: "isolate", whiteSpace: "pre-wrap" };
    const cell = element("span", style, { role: "option", tabindex: at === this.data.query ? "0" : "-1", "data-at": at });
    cell.textContent = this.data.shown[at];
    return cell;
  }

  paint() {
    const { data, dark } = this;
    const marks = new Map();
    for (const span of data.spans) for (const at of span.positions) marks.set(at, span.colour);
    this.cells.forEach((cell, at) => {
      const share = data.shares[at]; // null where the query does not see the key
      const [red, green, blue] = share === null ? [0, 0, 0] : colourOf(share, data.look, dark);
      const light = 0.3 * red + 0.59 * green + 0.11 * blue > 128;
      cell.style.background = share === null ? "transparent" : `rgb(${red}, ${green}, ${blue})`;
      cell.style.color = share === null ? "inherit" : light ? "#1f2430" : "#ffffff";
      cell.style.opacity = share === null ? 0.45 : 1;
      cell.style.boxShadow = marks.has(at) ? `inset 0 -2px 0 ${marks.get(at)}` : "none";
      cell.style.outline = at === data.query ? "1.5px solid currentColor" : "none";
      cell.setAttribute("aria-selected", at === data.query);
      cell.tabIndex = at === data.query ? 0 : -1;
      cell.title = this.about(at);
    });
    this.paintLegend();
  }

  paintLegend() {
    const { data, dark } = this;
    const context = this.legend.getContext("2d");
    for (let x = 0; x < 160; x++) {
      const share = data.signed ? Math.sign(x - 80) * ((x - 80) / 80) ** 2 : (x / 160) ** 2;
      context.fillStyle = `rgb(${colourOf(share, data.look, dark).join()})`;
      context.fillRect(x, 0, 1, 10);
    }
    this.words.textContent = data.signed ? `−100 % … 0 … 100 % of ${data.of}` : `0 … 100 % of ${data.of}`;
    const named = data.spans.map((span) => {
      const line = element("span", { borderBottom: `2px solid ${span.colour}` });
      line.textContent = span.name;
      return line;
    });
    this.spans.replaceChildren(...named);
  }

  about(at) {
    const share = this.data.shares[at];
    const value = share === null ? "not seen by this query" : `${(100 * share).toFixed(2)} % of ${this.data.of}`;
    return `token ${at}: ${value}`;
  }

  at(event) {
    const cell = event.target.closest("[data-at]");
    return cell ? Number(cell.dataset.at) : null;
  }

  begin(event) {
    const at = this.at(event);
    if (at === null) return;
    event.preventDefault();
    this.held = at;
    this.cells[at].focus({ preventScroll: true });
  }

  over(event) {
    const at = this.at(event);
    this.readout.textContent = at === null ? "" : this.about(at);
    if (this.held !== undefined && at !== null && at !== this.held && this.data.markable) this.select(this.held, at);
  }

  end(event) {
    const at = this.at(event);
    const from = this.held;
    this.held = undefined;
    if (at === null || at !== from) return;
    this.select(null, null);
    this.emit("query", at);
  }

  key(event) {
    const at = this.at(event);
    if (at === null) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && at + step >= 0 && at + step < this.cells.length) {
      if (event.shiftKey && this.data.markable) this.select(this.first === null ? at : this.first, at + step);
      this.cells[at + step].focus();
    } else if (event.key === "Enter" || event.key === " ") this.emit("query", at);
    else if (event.key === "Escape") this.select(null, null);
    else return;
    event.preventDefault();
  }

  // The tokens from one to another are selected, and can be named; null for none.
  select(first, last) {
    this.first = first;
    this.last = last;
    const [low, high] = first === null ? [1, 0] : [Math.min(first, last), Math.max(first, last)];
    this.cells.forEach((cell, at) => (cell.style.textDecoration = at >= low && at <= high ? "underline 2px" : "none"));
    this.naming.style.display = first === null ? "none" : "inline-flex";
    if (first === null) return;
    const words = element("span", {});
    words.textContent = low === high ? `token ${low} is` : `tokens ${low} to ${high} are`;
    this.naming.replaceChildren(words, ...NAMES.map((name) => this.button(name, low, high)));
  }

  button(name, first, last) {
    const button = element("button", {}, { type: "button", "aria-label": `mark the selected tokens as ${name}` });
    button.textContent = name;
    button.addEventListener("click", () => {
      this.select(null, null);
      this.emit("marked", { name, first, last });
    });
    return button;
  }
}

export function mount(host, data, emit) {
  return new Strip(host, data, emit);
}
