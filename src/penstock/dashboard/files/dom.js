// Elements, made in one way only: what comes from outside is text, and stays text.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("td.number", {title: "…"}, "text", other). Handlers begin with "on". */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElement(name), classes, props, children);
}

/** The same for pictures. */
export function svg(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElementNS(SVG, name), classes, props, children);
}

function fill(element, classes, props, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Give an element other children. */
export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/**
 * Show items as children, one each. A child whose item has not changed is left alone, so that
 * focus, selections and open details survive; one that has changed hands its focus on.
 */
export function keyed(parent, items, keyOf, draw) {
  const before = parent.drawn || new Map();
  const drawn = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const mark = JSON.stringify(item);
    let one = before.get(key);
    if (!one || one.mark !== mark) {
      const element = draw(item);
      if (one) {
        const focused = hasFocus(one.element);
        if (place === one.element) place = element;
        one.element.replaceWith(element);
        if (focused !== null) focusOf(element, focused);
      }
      one = { element, mark };
    }
    before.delete(key);
    drawn.set(key, one);
    if (one.element === place) place = place.nextElementSibling;
    else parent.insertBefore(one.element, place);
  }
  for (const one of before.values()) one.element.remove();
  while (place) {
    const next = place.nextElementSibling;
    if (![...drawn.values()].some((one) => one.element === place)) place.remove();
    place = next;
  }
  parent.drawn = drawn;
}

const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";

function hasFocus(element) {
  if (element === document.activeElement) return -1;
  if (!element.contains(document.activeElement)) return null;
  return [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
}

function focusOf(element, index) {
  const found = index < 0 ? element : element.querySelectorAll(FOCUSABLE)[index];
  if (found) found.focus({ preventScroll: true });
}
