/** What was found where a device could be, in words for operators. */
export interface Finding {
  /** `absent`: nothing of the kind is here. `broken`: it is here and cannot be used. */
  readonly kind: "usable" | "absent" | "broken";
  /** One line: what was found. */
  readonly text: string;
  /** The one thing to do about it; null where there is nothing. */
  readonly fix: string | null;
}

/** `1 GPU`, `2 GPUs`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/** Of a library that the configuration names and that is none. */
export function wrongPath(key: string, path: string): Finding {
  const fix = `name the library itself in ${key}, or leave it to the dynamic linker`;
  return { kind: "broken", text: `${key} ${path} cannot be opened`, fix };
}
