import type { TomlLiteral } from "./kinds.ts";
import { type Config, SCHEMA, SCHEMA_KEYS, type SchemaKey, valueAt } from "./schema.ts";
import type { Standard } from "./spec.ts";

const LINE_CHARACTERS_MAX = 98;

/** `config` as a file that says every key it can say; parsing it gives the same configuration. */
export function renderConfig(config: Config): string {
  const lines: string[] = [];
  for (const section of Object.keys(SCHEMA)) {
    lines.push(`[${section}]`);
    for (const key of SCHEMA_KEYS) {
      const value = key.section === section ? valueAt(config, key) : null;
      if (value !== null) lines.push(assignment(key.spec.key, key.spec.kind.write(value)));
    }
    lines.push("");
  }
  return lines.join("\n");
}

/** The commented sample file: every key, its default, and what it is for. */
export function renderSampleConfig(): string {
  const lines = [
    "# Hearth: configuration of one agent.",
    "#",
    "# Keys with a # before them show their default, or an example where there is none. Sizes and",
    '# durations carry their unit ("64GiB", "30s"). Unknown keys, wrong units and sums that cannot',
    "# hold are refused at start with file, line and key. `hearth check FILE` tries a file;",
    "# SIGHUP reloads it, and keys marked [reload] take effect at once.",
  ];
  for (const [name, section] of Object.entries(SCHEMA)) {
    lines.push("", ...comment(section.doc), `[${name}]`);
    for (const key of SCHEMA_KEYS) if (key.section === name) lines.push(...sampleKey(key));
  }
  return `${lines.join("\n")}\n`;
}

function sampleKey({ spec }: SchemaKey): string[] {
  const note = spec.reload ? " [reload]" : "";
  const isSet = spec.standard.is === "required";
  const lines = [
    "",
    ...comment(`${spec.doc}${note}`),
    ...comment(`Default: ${defaultWords(spec.standard)}. Allowed: ${spec.kind.range}.`),
    `${isSet ? "" : "#"}${assignment(spec.key, spec.example)}`,
  ];
  if (spec.also !== undefined) {
    lines.push("", ...comment(spec.also.doc), `#${assignment(spec.also.key, spec.also.example)}`);
  }
  return lines;
}

/** The reference page, in Markdown. */
export function renderConfigReference(): string {
  const lines = [
    "# Configuration",
    "",
    "One TOML file, named by `hearth agent --config FILE`. The environment is not read. Sizes and",
    'durations carry their unit: `"64GiB"`, `"30s"`. What is unknown, out of range or impossible',
    "together refuses the start with `file:line:column key: what is wrong; what to write instead`;",
    "all problems of a file are told at once. On SIGHUP the file is read again: keys marked with a",
    "reload take effect at once, for the others the log says that they wait for a restart.",
  ];
  for (const [name, section] of Object.entries(SCHEMA)) {
    lines.push("", `## [${name}]`, "", section.doc);
    for (const key of SCHEMA_KEYS) if (key.section === name) lines.push(...referenceKey(key));
  }
  return `${lines.join("\n")}\n`;
}

function referenceKey({ name, spec }: SchemaKey): string[] {
  const lines = referenceEntry(name, {
    type: spec.kind.name,
    allowed: spec.kind.range,
    standard: defaultWords(spec.standard, "`"),
    reload: spec.reload,
    doc: spec.doc,
    example: assignment(spec.key, spec.example),
  });
  if (spec.also === undefined) return lines;
  const { key, kind, doc, example } = spec.also;
  const other = referenceEntry(`${name.split(".")[0]}.${key}`, {
    type: kind.name,
    allowed: kind.range,
    standard: `that of \`${spec.key}\``,
    reload: spec.reload,
    doc,
    example: assignment(key, example),
  });
  return [...lines, ...other];
}

interface Entry {
  readonly type: string;
  readonly allowed: string;
  readonly standard: string;
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
    `| ${entry.type} | ${entry.standard} | ${entry.allowed} | ${sighup} |`,
    "",
    entry.doc,
    "",
    "```toml",
    entry.example,
    "```",
  ];
}

function defaultWords(standard: Standard<unknown>, quote = ""): string {
  switch (standard.is) {
    case "literal":
      return `${quote}${JSON.stringify(standard.literal)}${quote}`;
    case "derived":
      return standard.words;
    case "unset":
      return "unset";
    case "required":
      return "none, it must be set";
    default:
      return standard satisfies never;
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
