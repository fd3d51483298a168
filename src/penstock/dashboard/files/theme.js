// Runs before the first paint, so that nobody sees the other theme flash by.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
