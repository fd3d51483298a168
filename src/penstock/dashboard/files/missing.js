import { replace } from "./dom.js";
import { empty } from "./widgets.js";

export function show(view) {
  replace(view.root, empty("Page not found", `${view.path} is nothing that this server has.`));
}
