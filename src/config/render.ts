import type { TomlLiteral } from "./kinds.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";
import type { DefaultValue } from "./spec.ts";
import { type ConfigBook, keysOf, type SchemaKey, tablesOf, valueAt } from "./spec.ts";

const LINE_CHARACTERS_MAX = 98;

/** `config` as a file with every key; parsing it gives the same configuration. */
export function renderConfig(config: Config): string {
  return renderBook(AGENT_BOOK, config);
}

/** Like `renderConfig`, for any kind of file. */
export function renderBook(book: ConfigBook, config: object): string {
  const lines: string[] = [];
  for (const section of Object.keys(book.sections)) {
    lines.push(`[${section}]`);
    for (const key of book.keys) {
      if (key.section === section) lines.push(...written(key, valueAt(config, key)));
    }
    lines.push("");
  }
  for (const [section, named] of Object.entries(book.named)) {
    for (const table of tablesOf(config, section)) {
      lines.push(`[${section}.${table.name}]`);
      for (const key of keysOf([section], named)) lines.push(...written(key, table[key.field]));
      lines.push("");
    }
  }
  return lines.join("\n");
}

function written({ spec }: SchemaKey, value: unknown): string[] {
  return value === null ? [] : [assignment(spec.key, spec.kind.write(value))];
}

/** The commented sample file: every key with its default and description. */
export function renderSampleConfig(book = AGENT_BOOK): string {
  const lines = [
    `# ${book.words.sample}`,
    "#",
    "# A commented key shows its default, or an example if it has none. Sizes and durations carry",
    '# their unit ("64GiB", "30s"). Unknown keys, invalid values and contradictions are refused at',
    `# start with file, line and key. \`${book.words.check}\` checks a file. SIGHUP`,
    "# reloads it; keys marked [reload] take effect at once.",
  ];
  for (const [name, section] of Object.entries(book.sections)) {
    lines.push("", ...comment(section.doc), `[${name}]`);
    for (const key of book.keys) if (key.section === name) lines.push(...sampleKey(key));
  }
  for (const [name, section] of Object.entries(book.named)) {
    lines.push("", ...comment(section.doc), `#[${name}.${section.nameExample}]`);
    for (const key of keysOf([name], section)) lines.push(...sampleKey(key, "#"));
  }
  return `${lines.join("\n")}\n`;
}

function sampleKey({ spec }: SchemaKey, before = ""): string[] {
  const note = spec.reload ? " [reload]" : "";
  const isSet = spec.defaultValue.is === "required" && before === "";
  const lines = [
    "",
    ...comment(`${spec.doc}${note}`),
    ...comment(`Default: ${defaultWords(spec.defaultValue)}. Allowed: ${spec.kind.range}.`),
    `${isSet ? "" : "#"}${assignment(spec.key, spec.example)}`,
  ];
  if (spec.also !== undefined) {
    lines.push("", ...comment(spec.also.doc), `#${assignment(spec.also.key, spec.also.example)}`);
  }
  return lines;
}

/** The reference page, in Markdown. */
export function renderConfigReference(book = AGENT_BOOK): string {
  const lines = [
    `# ${book.words.title}`,
    "",
    `One TOML file, named by \`${book.words.usage}\`. The environment is not read. Sizes and`,
    'durations carry their unit: `"64GiB"`, `"30s"`. If a key is unknown, a value is out of range,',
    "or values contradict each other, the program refuses to start and reports all problems of the",
    "file as `file:line:column key: problem; correction`. SIGHUP reloads the file: keys marked",
    "with a reload take effect at once; for the others the log says that they need a restart.",
  ];
  for (const [name, section] of Object.entries(book.sections)) {
    lines.push("", `## [${name}]`, "", section.doc);
    for (const key of book.keys) if (key.section === name) lines.push(...referenceKey(key));
  }
  for (const [name, section] of Object.entries(book.named)) {
    lines.push("", `## [${name}.NAME]`, "", section.doc);
    for (const key of keysOf([name, "NAME"], section)) lines.push(...referenceKey(key));
  }
  return `${lines.join("\n")}\n`;
}

function referenceKey({ name, spec }: SchemaKey): string[] {
  const lines = referenceEntry(name, {
    type: spec.kind.name,
    allowed: spec.kind.range,
    defaultValue: defaultWords(spec.defaultValue, "`"),
    reload: spec.reload,
    doc: spec.doc,
    example: assignment(spec.key, spec.example),
  });
  if (spec.also === undefined) return lines;
  const { key, kind, doc, example } = spec.also;
  const other = referenceEntry(`${name.slice(0, name.lastIndexOf("."))}.${key}`, {
    type: kind.name,
    allowed: kind.range,
    defaultValue: `the same as \`${spec.key}\``,
    reload: spec.reload,
    doc,
    example: assignment(key, example),
  });
  return [...lines, ...other];
}

interface Entry {
  readonly type: string;
  readonly allowed: string;
  readonly defaultValue: string;
  readonly reload: boolean;
  readonly doc: string;
  readonly example: string;
}

function referenceEntry(name: string, entry: Entry): string[] {
  const sighup = entry.reload ? "reload" : "restart";
  return [
    "",
    `### ${name}`,
    "",
    "| type | default | allowed | on SIGHUP |",
    "|---|---|---|---|",
    `| ${entry.type} | ${entry.defaultValue} | ${entry.allowed} | ${sighup} |`,
    "",
    entry.doc,
    "",
    "```toml",
    entry.example,
    "```",
  ];
}

function defaultWords(defaultValue: DefaultValue<unknown>, quote = ""): string {
  switch (defaultValue.is) {
    case "literal":
      return `${quote}${JSON.stringify(defaultValue.literal)}${quote}`;
    case "derived":
      return defaultValue.words;
    case "unset":
      return "unset";
    case "required":
      return "none, it must be set";
    default:
      return defaultValue satisfies never;
  }
}

/** JSON's strings, numbers and booleans are TOML's, for what the schema allows. */
function assignment(key: string, value: TomlLiteral): string {
  return `${key} = ${JSON.stringify(value)}`;
}

/** `text` as comment lines. */
function comment(text: string): string[] {
  const lines: string[] = [];
  let line = "#";
  for (const word of text.split(" ")) {
    if (line.length + 1 + word.length > LINE_CHARACTERS_MAX) {
      lines.push(line);
      line = "#";
    }
    line += ` ${word}`;
  }
  return [...lines, line];
}
