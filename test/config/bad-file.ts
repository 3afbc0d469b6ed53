/**
 * A file that must be refused: its name, the text, and for every problem expected, in
 * order, `line:column key` and a part of its message.
 */
export type BadFile = readonly [
  name: string,
  text: string,
  ...problems: readonly (readonly [at: string, says: string])[],
];

/** The least a file needs, so that nothing else is wrong. */
export const KV = "[kv]\nram_gib = 1\n";

export function kv(line: string): string {
  return `${KV}${line}\n`;
}

export function ssd(dir: string, line = ""): string {
  return kv(`ssd_dir = "${dir}"\nssd_gib = 4\n${line}`);
}

export function engine(...lines: string[]): string {
  return `${KV}[engine]\n${lines.join("\n")}\n`;
}

export function api(...lines: string[]): string {
  return `${KV}[api]\n${lines.join("\n")}\n`;
}
