/* Pages before sign-in: the theme switch alone. */
import { themeSwitch } from "./settings.js";
themeSwitch();
