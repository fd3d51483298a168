import { replace } from "/dashboard/dom.js";
import { empty } from "/dashboard/widgets.js";

export function show(view) {
  replace(view.root, empty("There is no such screen", `${view.path} is nothing that this server has.`));
}
