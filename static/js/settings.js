/* What a reader chose for this browser: theme and zone of times. Storage can be forbidden; then a choice lasts for the page. */

export const remember = (name, value) => {
  try {
    localStorage.setItem(`paceline.${name}`, value);
  } catch {
    /* lasts for this page */
  }
};
export const recall = name => {
  try {
    return localStorage.getItem(`paceline.${name}`);
  } catch {
    return null;
  }
};

const dark = matchMedia("(prefers-color-scheme: dark)");
export const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
const changed = () => document.dispatchEvent(new CustomEvent("paceline:theme"));

export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  remember("theme", next);
  changed();
}
export function themeSwitch() {
  dark.addEventListener("change", changed);
  document.addEventListener("click", e => {
    if (e.target.closest("[data-theme-switch]")) switchTheme();
  });
}
