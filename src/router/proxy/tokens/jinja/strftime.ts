import { PythonError } from "../python/index.ts";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June", "July", "August"],
  ...["September", "October", "November", "December"],
];

function two(value: number): string {
  return value.toString().padStart(2, "0");
}

function dayOfYear(at: Date): number {
  const start = Date.UTC(at.getFullYear(), 0, 1);
  const day = Date.UTC(at.getFullYear(), at.getMonth(), at.getDate());
  return Math.round((day - start) / 86_400_000) + 1;
}

const DIRECTIVES: Readonly<Record<string, (at: Date) => string>> = {
  "%": () => "%",
  A: (at) => DAYS[at.getDay()]!,
  a: (at) => DAYS[at.getDay()]!.slice(0, 3),
  B: (at) => MONTHS[at.getMonth()]!,
  b: (at) => MONTHS[at.getMonth()]!.slice(0, 3),
  d: (at) => two(at.getDate()),
  e: (at) => at.getDate().toString().padStart(2),
  F: (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`,
  H: (at) => two(at.getHours()),
  I: (at) => two(at.getHours() % 12 || 12),
  j: (at) => dayOfYear(at).toString().padStart(3, "0"),
  M: (at) => two(at.getMinutes()),
  m: (at) => two(at.getMonth() + 1),
  p: (at) => (at.getHours() < 12 ? "AM" : "PM"),
  S: (at) => two(at.getSeconds()),
  T: (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`,
  w: (at) => at.getDay().toString(),
  Y: (at) => at.getFullYear().toString(),
  y: (at) => two(at.getFullYear() % 100),
};

/** `datetime.strftime` in the C locale and this host's time zone. */
export function strftime(format: string, at: Date): string {
  return format.replace(/%(-?)([\s\S])?/g, (all, flag: string, name: string | undefined) => {
    const directive = Object.hasOwn(DIRECTIVES, name ?? "") ? DIRECTIVES[name!] : undefined;
    if (directive === undefined) throw new PythonError(`the directive ${all} is not supported`);
    const text = directive(at);
    return flag === "" ? text : text.replace(/^[0 ]+(?=.)/, "");
  });
}
