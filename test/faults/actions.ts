/** How each call may fail, beside EIO: what the kernel says where there is a reason of its own. */
const ACTIONS: readonly (readonly [prefix: string, actions: readonly string[]])[] = [
  ["disk.eventfd", ["EMFILE"]],
  ["disk.", ["ENOMEM"]],
  ["ring.setup", ["EPERM", "ENOMEM"]],
  ["ring.enter", ["EBUSY"]],
  ["ring.", ["ENOMEM"]],
  ["open.proc", ["ENOENT"]],
  ["open.probe", ["EINVAL", "EOPNOTSUPP", "EROFS"]],
  ["open.", ["EMFILE", "EACCES"]],
  ["store.open", ["ENOSPC", "EROFS", "EMFILE", "EOPNOTSUPP"]],
  ["store.write", ["ENOSPC", "short", "EINTR"]],
  ["store.link", ["ENOSPC", "EEXIST"]],
  ["store.reuse", ["ENOENT", "EMFILE"]],
  ["store.rename", ["ENOSPC", "EEXIST", "EINVAL"]],
  ["store.mkdir", ["ENOSPC", "EROFS"]],
  ["store.", []],
  ["load.open", ["EMFILE", "ENOENT"]],
  ["load.read", ["short", "flip", "EINTR"]],
  ["load.", []],
  ["peek.read", ["short", "flip"]],
  ["peek.open", ["EMFILE"]],
  ["remove.", ["EROFS", "EBUSY"]],
  ["rename.", ["ENOSPC", "EINVAL"]],
  ["list.", ["EMFILE", "ENOMEM"]],
];

const ALWAYS = "EIO";

/**
 * What to do to the nth hit of a call: to it alone, and from it on. Of later hits, one way each in
 * turn, so that a run of thousands of hits stays a run of minutes.
 */
export function actionsOf(point: string, nth: number): string[] {
  const own = ACTIONS.find(([prefix]) => point.startsWith(prefix))?.[1] ?? [];
  const all = [ALWAYS, ...own];
  return nth <= 2 ? all : [all[nth % all.length]!];
}

const FIRST = 6;
const SPREAD = 4;

/**
 * Which hits of `count` fail: the first ones, the last ones, and some between; `+` = from then on.
 */
export function nthsOf(count: number): string[] {
  const chosen = new Set<number>();
  for (let nth = 1; nth <= Math.min(FIRST, count); nth++) chosen.add(nth);
  for (let i = 1; i <= SPREAD; i++) chosen.add(Math.ceil((count * i) / SPREAD));
  const once = [...chosen].map(String);
  const forEver = [1, 2, Math.ceil(count / 2)].filter((nth) => nth <= count);
  return [...once, ...[...new Set(forEver)].map((nth) => `${nth}+`)];
}
