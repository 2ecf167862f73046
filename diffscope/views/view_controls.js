// What a view is operated with, and how that looks on light and dark pages.

const STYLE = `
.diffscope-view { font-size: 13px; border-radius: 4px; outline-offset: 3px; position: relative }
.diffscope-view .sentence { margin: 0 0 8px; font-size: 15px; line-height: 1.45; max-width: 62em; position: relative }
.diffscope-view code { font: 0.9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; padding: 1px 4px; border-radius: 3px;
  background: color-mix(in srgb, currentColor 10%, transparent) }
.diffscope-view .number { cursor: help; text-decoration: underline dotted color-mix(in srgb, currentColor 45%, transparent);
  text-underline-offset: 3px; font-variant-numeric: tabular-nums; white-space: nowrap }
.diffscope-view .number:is(:hover, :focus)::after { content: attr(aria-description); position: absolute; left: 0; top: calc(100% + 3px);
  z-index: 10; max-width: 44em; white-space: normal; padding: 6px 9px; border-radius: 4px; font-size: 13px; line-height: 1.4; background: Canvas;
  color: CanvasText; border: 1px solid rgba(128, 128, 128, 0.6); box-shadow: 0 1px 6px rgba(0, 0, 0, 0.3) }
.diffscope-view .prompt { margin: 0 0 8px; font: 12.5px/1.7 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; max-height: 9em;
  overflow-y: auto; white-space: pre-wrap; overflow-wrap: anywhere }
.diffscope-view .sentence:empty, .diffscope-view .prompt:empty { display: none }
.diffscope-view.stale > :not(.prompt), .diffscope-view .stale { opacity: 0.35 }
.diffscope-view .bar { display: flex; flex-wrap: wrap; gap: 6px 9px; align-items: center; margin-bottom: 6px }
.diffscope-view .bar strong { flex: 1 1 auto }
.diffscope-view .line { display: inline-flex; gap: 5px; align-items: center }
.diffscope-view .ticks { flex-wrap: wrap; gap: 4px 10px }
.diffscope-view .faint { opacity: 0.75 }
.diffscope-view button, .diffscope-view select { font: inherit; color: inherit; background: transparent; min-width: 2em; min-height: 26px;
  border: 1px solid color-mix(in srgb, currentColor 35%, transparent); border-radius: 4px; padding: 1px 7px; cursor: pointer }
.diffscope-view option { color: initial }
.diffscope-view button[aria-pressed=true] { background: color-mix(in srgb, currentColor 16%, transparent) }
.diffscope-view button:hover, .diffscope-view select:hover { border-color: currentColor }
.diffscope-view :focus-visible, .diffscope-view:focus-visible { outline: 2px solid #2f80ed }
.diffscope-view .pair { display: inline-flex }
.diffscope-view .pair button:first-child { border-radius: 4px 0 0 4px }
.diffscope-view .pair button:last-child { border-radius: 0 4px 4px 0; border-left-width: 0 }
.diffscope-view .foot { min-height: 1.5em; margin-top: 6px }
.diffscope-view .readout { white-space: pre-wrap; overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
.diffscope-view .readout.tip { position: absolute; z-index: 10; pointer-events: none; max-width: 44em; padding: 6px 9px; border-radius: 4px;
  border: 1px solid rgba(128, 128, 128, 0.6); box-shadow: 0 1px 6px rgba(0, 0, 0, 0.3) }
`;

// A piece of a sentence, as nodes: a number says what it is to whoever points at it or comes to it by the tab key, and tokens, which
// stand between backticks, are set apart.
function explained([text, help]) {
  if (help) return [element("span", {}, { class: "number", tabindex: "0", role: "note", "aria-description": help }, text)];
  return text.split("`").map((piece, at) => element(at % 2 ? "code" : "span", {}, {}, piece));
}

// Each control has a box to put on the page, and shows a value that was set elsewhere.
function choice(label, options, title, change) {
  const box = element("select", {}, { "aria-label": label, title });
  for (const [value, text] of options) box.append(new Option(text, value));
  box.addEventListener("change", () => change(box.value));
  return { box, show: (value) => (box.value = value) };
}

function tick(label, title, change) {
  const box = element("label", { cursor: "pointer" }, { class: "line", title });
  const input = element("input", {}, { type: "checkbox" });
  input.addEventListener("change", () => change(input.checked));
  box.append(input, label);
  return { box, show: (value) => (input.checked = value) };
}

function button(text, title, act, label = text) {
  const box = element("button", {}, { type: "button", "aria-label": label, title }, text);
  box.addEventListener("click", act);
  return box;
}

// Buttons of which one is pressed.
function pair(label, options, change) {
  const box = element("span", {}, { class: "pair", role: "group", "aria-label": label });
  const buttons = options.map(([value, text, title]) => [value, button(text, title, () => change(value))]);
  box.append(...buttons.map(([, each]) => each));
  return { box, show: (value) => buttons.forEach(([name, each]) => each.setAttribute("aria-pressed", name === value)) };
}

// Pointing, dragging, clicking and the wheel on a canvas; `tokens(event)` is {row, column} under the pointer, null where there is none,
// and `step()` how many tokens a pixel is, down and across.
function listen(canvas, view, tokens, step) {
  let grabbed = null;
  canvas.addEventListener("pointermove", (event) => {
    if (!grabbed) return view.pointAt(tokens(event), event);
    const { top, left, size } = grabbed.window;
    const [down, across] = step();
    view.look(top - (event.clientY - grabbed.y) * down, left - (event.clientX - grabbed.x) * across, size);
  });
  canvas.addEventListener("pointerleave", () => view.pointAt(null));
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    grabbed = { x: event.clientX, y: event.clientY, window: { ...view.window } };
  });
  canvas.addEventListener("pointercancel", () => (grabbed = null));
  canvas.addEventListener("pointerup", (event) => {
    const clicked = grabbed && Math.hypot(event.clientX - grabbed.x, event.clientY - grabbed.y) <= 4;
    grabbed = null;
    const at = clicked && tokens(event);
    if (at) view.lock(at, event.shiftKey);
  });
  const turned = (event) => {
    const asked = event.ctrlKey || event.metaKey || view.focused; // else the reader scrolls the page
    if (asked && event.deltaY && view.zoom(event.deltaY > 0 ? 1.25 : 0.8, tokens(event))) event.preventDefault();
  };
  canvas.addEventListener("wheel", turned, { passive: false });
  canvas.addEventListener("dblclick", () => view.whole());
}
