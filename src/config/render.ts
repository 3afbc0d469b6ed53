import type { TomlLiteral } from "../core/index.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";
import type { DefaultValue } from "./spec.ts";
import { type ConfigBook, keysOf, type SchemaKey, tablesOf, valueAt } from "./spec.ts";

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

/** The sample file: the keys that people set, commented unless they are required. */
export function renderSampleConfig(book = AGENT_BOOK): string {
  const { words, sample } = book;
  const lines = [
    `# ${words.sample}`,
    "#",
    "# These keys are set most often; a commented key shows an example or its default.",
    `# ${words.reference} describes all keys. \`${words.check}\` checks a file.`,
  ];
  const show = (header: string, keys: readonly SchemaKey[], isCommented: boolean) => {
    const shown = keys.filter(({ name }) => Object.hasOwn(sample, name));
    if (shown.length === 0) return;
    lines.push("", header);
    for (const { name, spec } of shown) {
      const isSet = spec.defaultValue.is === "required" && !isCommented;
      lines.push(`# ${sample[name]}`, `${isSet ? "" : "#"}${assignment(spec.key, spec.example)}`);
    }
  };
  for (const section of Object.keys(book.sections)) {
    const keys = book.keys.filter((key) => key.section === section);
    show(`[${section}]`, keys, false);
  }
  for (const [name, section] of Object.entries(book.named)) {
    show(`#[${name}.${section.nameExample}]`, keysOf([name], section), true);
  }
  return `${lines.join("\n")}\n`;
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
  const { kind, defaultValue, reload, doc, example } = spec;
  const cells = [
    kind.name,
    defaultWords(defaultValue, "`"),
    kind.range,
    reload === true ? "reload" : "restart",
  ];
  return [
    "",
    `### ${name}`,
    "",
    "| type | default | allowed | on SIGHUP |",
    "|---|---|---|---|",
    `| ${cells.join(" | ")} |`,
    "",
    doc,
    "",
    "```toml",
    assignment(spec.key, example),
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
