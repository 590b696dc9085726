/* Loaded in the head, before the first paint: a stored theme never flashes the other one. */
(function () {
  "use strict";
  var stored = null;
  try {
    stored = localStorage.getItem("paceline.theme");
  } catch (error) {
    /* storage can be forbidden; the system's theme is then used */
  }
  var wanted = new URLSearchParams(location.search).get("theme") || stored;
  if (wanted === "dark" || wanted === "light") document.documentElement.dataset.theme = wanted;
  document.documentElement.classList.add("js");
})();
