import { placeholderOf } from "../core/index.ts";
import type { Entry } from "./catalogue.ts";
import type { Command } from "./command.ts";
import { EXIT_CODES, type ExitName, flagName } from "./command.ts";

const LINE_CHARACTERS_MAX = 100;
const INDENT = "  ";

/** Wraps the words of `text` into lines of at most `width` characters. */
function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > width) {
      lines.push(line);
      line = "";
    }
    line += line === "" ? word : ` ${word}`;
  }
  lines.push(line);
  return lines;
}

/** Formats two columns: names, and their wrapped descriptions. */
function twoColumns(rows: readonly (readonly [string, string])[], columns: number): string[] {
  const left = Math.max(...rows.map(([name]) => name.length)) + 2 * INDENT.length;
  const width = Math.max(30, Math.min(columns, LINE_CHARACTERS_MAX) - left);
  return rows.flatMap(([name, meaning]) =>
    wrap(meaning, width).map((line, index) => {
      const start = index === 0 ? `${INDENT}${name}` : "";
      return `${start.padEnd(left)}${line}`;
    }),
  );
}

function exitRows(names: readonly ExitName[]): [string, string][] {
  return names.map((name) => [String(EXIT_CODES[name].code), EXIT_CODES[name].meaning]);
}

/** Returns the text of `hearth --help`. */
export function generalHelp(
  entries: readonly Entry[],
  versionLine: string,
  columns: number,
): string {
  const lines = [
    versionLine,
    "Keeps the KV cache of LLM inference warm.",
    "",
    "usage: hearth COMMAND [flags] [arguments]",
    "",
    "commands:",
    ...twoColumns(
      entries.map(({ name, summary }) => [name, summary]),
      columns,
    ),
    "",
    "flags:",
    ...twoColumns(
      [
        ["--help, -h", "print this, or the help of the command before it"],
        ["--version", "print version, commit and runtime"],
      ],
      columns,
    ),
    "",
    "exit codes:",
    ...twoColumns(exitRows(Object.keys(EXIT_CODES) as ExitName[]), columns),
    "",
    "Results go to standard output; with --json as JSON, one document a line. Everything else goes",
    "to standard error. `hearth COMMAND --help` has flags and examples.",
  ];
  return `${lines.join("\n")}\n`;
}

/** Returns the help page of a group of commands, such as `hearth bench --help`. */
export function groupHelp(group: string, entries: readonly Entry[], columns: number): string {
  const lines = [
    `usage: hearth ${group} COMMAND [flags] [arguments]`,
    "",
    "commands:",
    ...twoColumns(
      entries.map(({ name, summary }) => [name, summary]),
      columns,
    ),
  ];
  return `${lines.join("\n")}\n`;
}

function usageLine(name: string, command: Command): string {
  const parts = [`usage: hearth ${name}`];
  for (const [flag, { kind, defaultValue }] of Object.entries(command.flags)) {
    if (defaultValue === null) parts.push(`${flagName(flag)} ${placeholderOf(kind!)}`);
  }
  parts.push("[flags]");
  for (const { kind, presence } of Object.values(command.arguments)) {
    const placeholder = placeholderOf(kind);
    if (presence === "required") parts.push(placeholder);
    else parts.push(presence === "rest" ? `[${placeholder}…]` : `[${placeholder}]`);
  }
  return parts.join(" ");
}

function flagRows(command: Command): [string, string][] {
  const rows = Object.entries(command.flags).map(([name, flag]): [string, string] => {
    const { kind, help, defaultValue, defaultText } = flag;
    const value = kind === null ? "" : ` ${placeholderOf(kind)}`;
    const notes = [
      ...(defaultValue === null ? ["required"] : []),
      ...(defaultText === null ? [] : [`default ${defaultText}`]),
      ...(flag.repeated ? ["may be repeated"] : []),
    ];
    const note = notes.length === 0 ? "" : ` (${notes.join(", ")})`;
    return [`${flagName(name)}${value}`, `${help}${note}`];
  });
  return [...rows, ["--help, -h", "print this"]];
}

/** Returns the text of `hearth NAME --help`. */
export function commandHelp(entry: Entry, command: Command, columns: number): string {
  const args = Object.values(command.arguments);
  const exits: ExitName[] = ["ok", "failed", "usage", ...command.exits];
  const width = Math.min(columns, LINE_CHARACTERS_MAX);
  const lines = [
    `hearth ${entry.name}: ${entry.summary}`,
    "",
    usageLine(entry.name, command),
    ...command.description.flatMap((paragraph) => ["", ...wrap(paragraph, width)]),
    ...(args.length === 0 ? [] : ["", "arguments:"]),
    ...(args.length === 0
      ? []
      : twoColumns(
          args.map(({ kind, help }) => [placeholderOf(kind), help]),
          columns,
        )),
    "",
    "flags:",
    ...twoColumns(flagRows(command), columns),
    "",
    "examples:",
    ...command.examples.flatMap(({ words, what }) => [
      `${INDENT}hearth ${words}`,
      `${INDENT}${INDENT}${INDENT}${what}`,
    ]),
    "",
    "exit codes:",
    ...twoColumns(exitRows(exits), columns),
  ];
  return `${lines.join("\n")}\n`;
}
