// Elements, numbers as text, and messages to the visitor.

export const $ = (id) => document.getElementById(id);

/** Creates an element with properties, or attributes such as `aria-label`, and children. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "role" || key.includes("-")) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

/** Ticks the choice of this value among those of a name. */
export function tick(name, value) {
  for (const input of document.getElementsByName(name)) input.checked = input.value === value;
}

/** Sets a text if it differs: only changes are announced and laid out. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Switches a button on or off; one that is off keeps the focus and ignores presses, by `ignorePresses`. */
export const setEnabled = (button, isEnabled) => button.setAttribute("aria-disabled", `${!isEnabled}`);

/** Ignores presses of buttons that are switched off, and the repeated presses of a key that is held, which would start and
    stop, or train, many times. */
export function ignorePresses() {
  addEventListener("keydown", (event) => { if (event.repeat && event.key === "Enter" && event.target.matches?.("button")) event.preventDefault(); });
  addEventListener("click", (event) => {
    if (!event.target.closest?.("[aria-disabled=true]")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, { capture: true });
}

/** A number with `digits` decimals and a true minus sign; zero has no sign. */
export const formatFixed = (x, digits = 2) => (Number.isFinite(x) ? x.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−") : "–");

/** A score, without decimals if it is an integer. */
export const formatScore = (x) => formatFixed(x, Number.isInteger(x) ? 0 : 2);

/** A mean and its standard error, null where it is unknown. */
export const formatMean = (mean, error) => `${formatFixed(mean)}${error === null ? "" : ` ± ${formatFixed(error)}`}`;

/** A large number in short form: 12.3k. */
export function formatShort(x) {
  if (!Number.isFinite(x)) return "–";
  // A number that would be rounded to the next unit has that unit.
  const [unit, name] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([unit]) => x >= 0.9995 * unit) ?? [1, ""];
  return `${(x / unit).toFixed(x / unit < 100 && name ? 1 : 0)}${name}`;
}

/** Bytes, as MB. */
export const formatMegabytes = (x) => `${(x / 1e6).toFixed(x < 1e7 ? 1 : 0)} MB`;

/** The reason that an error gives, for the middle of a sentence; what a parser found is left out. */
export const reason = (error) => String(error?.message ?? error).replace(/^Error: /, "").replace(/(not an intact safetensors file): .*/s, "$1");

/** The message of an error as a sentence. */
export const sentence = (error) => reason(error).replace(/^[a-z]+(?=[\s,])/, (word) => word[0].toUpperCase() + word.slice(1)).replace(/[^.!?…]$/, "$&.");

/** Milliseconds that a message stays; longer while the pointer or the focus is on it. */
const NOTICE_MS = 6_000;

/** The element that had the focus before a message. */
let focusBefore;

/** Shows a message in place of the last one; good news if it `isGood`, else a problem. */
export function showNotice(text, isGood = false) {
  const close = make("button", { type: "button", textContent: "OK", "aria-label": "OK, dismiss the message" });
  const notice = make("p", { className: `notice${isGood ? " good" : ""}` }, make("span", { textContent: text }), close);
  close.addEventListener("focus", ({ relatedTarget }) => { focusBefore = relatedTarget ?? focusBefore; });
  close.addEventListener("click", () => {
    notice.remove();
    focusBefore?.focus({ preventScroll: true });
  });
  const leave = () => (notice.matches(":hover, :focus-within") ? setTimeout(leave, NOTICE_MS) : notice.remove());
  setTimeout(leave, NOTICE_MS);
  const hadFocus = $("notices").contains(document.activeElement);
  if (!hadFocus) focusBefore = undefined;
  $("notices").replaceChildren(notice);
  if (hadFocus) close.focus();
}

/** Announces good news. */
export const announce = (text) => showNotice(text, true);
