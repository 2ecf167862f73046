// A prompt as running text, each token on the colour of what one query gives it. Drawn from plain data (token_strip.py).
//
// Hosts call mount(element, data, emit); what it returns takes further data (update) and is told to go (leave). A click emits
// "query" with a position; tokens that are selected with the mouse, or with shift and arrows, and then named, emit "marked" with a
// list: the last mark, after those that the host has not answered yet, since it may take the last of several events alone.

const KEYS = "arrows, home and end move, enter shows the row of a query";
const STYLE = `
.diffscope-tokens { font-size: 13px }
.diffscope-tokens [role=listbox] { font: 12.5px/1.8 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; word-break: break-word;
  max-height: 17em; overflow-y: auto; padding: 2px; user-select: none }
.diffscope-tokens [role=option] { padding: 1px; border-radius: 2px; cursor: pointer; unicode-bidi: isolate; white-space: pre-wrap }
.diffscope-tokens [role=option][aria-selected=true] { outline: 1.5px solid var(--ink) }
.diffscope-tokens [role=option]:focus-visible { outline: 2px solid #2f80ed; outline-offset: 1.5px }
.diffscope-tokens .held { text-decoration: underline 2px }
`;

// Where a share from −1 to 1 is on its ramp: at its root, so that a few per cent can be seen.
const placeOf = (share) => Math.sign(share) * Math.sqrt(Math.min(1, Math.abs(share)));

class Strip {
  constructor(host, data, emit) {
    this.host = host;
    this.emit = emit || (() => {});
    this.turned = ({ detail }) => this.fade(detail);
    this.released = () => (this.held = undefined); // wherever on the page the button is let go
    this.pending = []; // marks that the host has not answered
    this.build();
    this.update(data);
    window.addEventListener(CHOSEN, this.turned);
    window.addEventListener("pointerup", this.released);
  }

  // Another head is looked at, whose row has not come yet.
  fade({ layer, head }) {
    this.root.style.opacity = layer === this.data.layer && head === this.data.head ? 1 : 0.4;
  }

  leave() {
    window.removeEventListener(CHOSEN, this.turned);
    window.removeEventListener("pointerup", this.released);
    clearTimeout(this.waiting);
    this.host.replaceChildren();
  }

  build() {
    this.root = element("div", TURNING, { class: "diffscope-tokens" });
    whenTurned(this.root, () => this.paint());
    const bar = element("div", { display: "flex", flexWrap: "wrap", gap: "6px 14px", alignItems: "center", marginBottom: "4px" });
    this.legend = new ColourBar();
    this.words = element("span", { opacity: 0.8 });
    this.spans = element("span", { display: "inline-flex", flexWrap: "wrap", gap: "4px 12px" });
    this.naming = element("span", { display: "none", gap: "6px", alignItems: "center" }, { "aria-live": "polite" });
    this.readout = element("span", { minWidth: "16em", fontVariantNumeric: "tabular-nums" }, { "aria-live": "polite" });
    bar.append(this.legend.box, this.words, this.spans, this.naming, this.readout);
    const about = { "aria-label": "Tokens of the prompt", "aria-orientation": "horizontal" };
    this.text = element("div", {}, { role: "listbox", ...about });
    this.root.append(element("style", {}, {}, STYLE), bar, this.text);
    this.host.replaceChildren(this.root);
    this.text.addEventListener("pointerdown", (event) => this.begin(event));
    this.text.addEventListener("pointermove", (event) => this.over(event));
    this.text.addEventListener("pointerup", (event) => this.end(event));
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.text.addEventListener("focusin", (event) => this.reach(this.at(event)));
  }

  update(data) {
    const same = this.data && this.data.prompt === data.prompt;
    this.data = data;
    this.root.style.opacity = 1;
    if (same) this.settle();
    else this.write();
    this.text.setAttribute("aria-description", this.markable ? `${KEYS}, shift and arrows select tokens to be marked` : KEYS);
    this.choose(data.query);
    this.paint();
    this.tell(this.told);
  }

  // The host has answered: what it does not take is not drawn as a span any more.
  settle() {
    const { prompt, spans } = this.data;
    if (this.pending.length) this.announce({ prompt, spans, measured: true });
    const taken = ({ name, first, last }) =>
      spans.some((span) => span.name === name && span.ranges.some(([start, stop]) => start <= first && last < stop));
    this.pending = this.pending.filter((mark) => !taken(mark));
  }

  // Another prompt.
  write() {
    const { tokens, shown } = this.data;
    const option = (at) =>
      element("span", {}, { role: "option", tabindex: "-1", "aria-selected": "false", "data-at": at }, shown[at]);
    this.cells = tokens.map((_, at) => option(at));
    this.looks = []; // of each token, how it is painted
    this.query = null;
    this.stop = null; // the token that the tab key leads to
    this.told = null; // the token whose share is told
    this.pending = [];
    const breaks = (token) => (token.includes("\n") ? [element("br")] : []);
    this.text.replaceChildren(...this.cells.flatMap((cell, at) => [cell, ...breaks(tokens[at]), element("wbr")]));
    this.select(null, null);
  }

  // The query is the option that is selected, and where the tab key leads to unless the reader is on another token.
  choose(query) {
    this.cells[this.query]?.setAttribute("aria-selected", "false");
    this.cells[query].setAttribute("aria-selected", "true");
    this.query = query;
    if (!this.text.matches(":focus-within")) this.lead(query);
  }

  lead(at) {
    if (this.stop !== null) this.cells[this.stop].tabIndex = -1;
    this.cells[at].tabIndex = 0;
    this.stop = at;
  }

  tell(at) {
    this.told = at;
    this.readout.textContent = at === null ? "" : this.about(at);
  }

  // Touches those tokens alone that look different from before: a prompt may have many thousands.
  paint() {
    const { data } = this;
    const dark = isDark(this.root);
    const ramp = rampsOf(data.look, dark)[data.signed ? "diverging" : "blue"];
    const unseen = packed(channels(dark ? data.look.unseenDark : data.look.unseen));
    const marks = new Map();
    for (const span of data.spans) for (const at of span.ranges.flatMap(tokensOf)) marks.set(at, onPage(span.colour, dark));
    this.root.style.colorScheme = dark ? "dark" : "light";
    this.root.style.setProperty("--ink", getComputedStyle(this.root).color);
    this.cells.forEach(({ style }, at) => {
      const share = data.shares[at]; // null where the query does not see the key, or the whole row is zero
      const colour = share === null ? unseen : colourAt(ramp, placeOf(share));
      const look = `${colour} ${marks.get(at)}`;
      if (look === this.looks[at]) return;
      this.looks[at] = look;
      style.background = css(colour);
      style.color = inkOn(colour);
      style.boxShadow = marks.has(at) ? `0 2.5px 0 ${marks.get(at)}` : "";
    });
    this.explain(ramp, dark);
  }

  explain(ramp, dark) {
    const { signed, of, spans } = this.data;
    const texts = signed ? ["−100 %", "0", "100 %"] : ["0", "25 %", "100 %"];
    const marks = texts.map((text, i) => [i / 2, text]);
    this.legend.draw(ramp, { marks, width: 160, label: `colours from ${texts[0]} to ${texts[2]} of ${of}` });
    this.words.textContent = `of ${of}`;
    const line = (colour) => ({ borderBottom: `2px solid ${onPage(colour, dark)}` });
    this.spans.replaceChildren(...spans.map(({ name, colour }) => element("span", line(colour), {}, name)));
  }

  about(at) {
    const share = this.data.shares[at];
    const nothing = this.data.seen[at] ? "no share, as the whole row is 0" : "not seen by this query";
    const value = share === null ? nothing : `${(100 * share).toFixed(2).replace("-", "−")} % of ${this.data.of}`;
    return `token ${at}: ${value}`;
  }

  reach(at) {
    if (at === null) return;
    this.lead(at);
    this.tell(at);
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
    this.tell(at);
    if (at !== null) this.cells[at].title = this.about(at);
    if (this.held !== undefined && at !== null && at !== this.held && this.markable) this.select(this.held, at);
  }

  end(event) {
    const at = this.at(event);
    const from = this.held;
    if (at === null || at !== from) return;
    this.select(null, null);
    this.emit("query", at);
  }

  key(event) {
    const at = this.at(event);
    if (at === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const end = this.cells.length - 1;
    const next = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(end, at + 1), Home: 0, End: end }[event.key];
    if (next !== undefined) {
      if (event.shiftKey && this.markable) this.select(this.first === null ? at : this.first, next);
      this.cells[next].focus();
    } else if (event.key === "Enter" || event.key === " ") this.emit("query", at);
    else if (event.key === "Escape") this.select(null, null);
    else return;
    event.preventDefault();
  }

  // The tokens from one to another are selected, and can be named; null for none.
  select(first, last) {
    this.first = first;
    for (const cell of this.text.querySelectorAll(".held")) cell.classList.remove("held");
    this.naming.style.display = first === null ? "none" : "inline-flex";
    if (first === null) return;
    const [low, high] = [Math.min(first, last), Math.max(first, last)];
    for (const cell of this.cells.slice(low, high + 1)) cell.classList.add("held");
    const words = low === high ? `token ${low} is` : `tokens ${low} to ${high} are`;
    this.naming.replaceChildren(element("span", {}, {}, words), ...Object.keys(this.data.marks).map((name) => this.button(name, low, high)));
  }

  get markable() {
    return Object.keys(this.data.marks).length > 0;
  }

  button(name, first, last) {
    const label = `mark the selected tokens as ${name}`;
    const button = element("button", {}, { type: "button", "aria-label": label }, name);
    button.addEventListener("click", () => {
      this.select(null, null);
      this.mark(name, first, last);
      this.pending = [...this.pending, { name, first, last }];
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => (this.pending = []), PATIENCE); // one that is refused is not asked for again
      this.emit("marked", this.pending);
    });
    return button;
  }

  // Shows tokens as a span here and in the maps of the prompt, before the host has measured anything of it.
  mark(name, first, last) {
    const { prompt, spans, marks, marked } = this.data;
    const before = marked.includes(name) ? spans.filter((span) => span.name === name).flatMap(({ ranges }) => ranges) : [];
    const span = { name, colour: marks[name], ranges: [...before, [first, last + 1]] };
    const detail = { prompt, spans: [...spans.filter((other) => other.name !== name), span] };
    this.data = { ...this.data, spans: detail.spans, marked: [...marked, name] };
    this.paint();
    this.announce(detail);
  }

  // Tells the maps of the prompt which spans it has.
  announce(detail) {
    window.dispatchEvent(new CustomEvent(MARKED, { detail }));
  }
}

export function mount(host, data, emit) {
  return new Strip(host, data, emit);
}
