const CHARACTERS_MAX = 120;
/** What steers a terminal: control characters of all kinds, and those that turn text around. */
const STEERING = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]+/gu;

/** Text from elsewhere on one line, without what steers terminals. */
export function plain(text: string, max = CHARACTERS_MAX): string {
  const clean = text.replace(STEERING, " ");
  return clean.length > max ? `${clean.slice(0, max - 1)}…` : clean;
}
