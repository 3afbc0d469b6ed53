/** `bun run docs`: the reference pages that are generated from the code that defines them. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { renderConfigReference } from "../src/config/index.ts";
import { ERROR_CODES } from "../src/core/index.ts";
import { scriptOptions } from "./lib/arguments.ts";
import { ROOT } from "./lib/paths.ts";

const HELP = `
Writes the generated reference pages to dist/docs/: config.md and errors.md.

  bun run docs

Exit codes: 0 written; 2 wrong usage.
`;

function renderErrorReference(): string {
  const lines = [
    "# Error codes",
    "",
    "Log lines, HTTP answers and exit messages carry one of these codes. They are stable.",
    "",
    "| code | meaning | try again |",
    "|---|---|---|",
  ];
  for (const [code, { meaning, retryable }] of Object.entries(ERROR_CODES)) {
    lines.push(`| \`${code}\` | ${meaning} | ${retryable ? "yes" : "no"} |`);
  }
  return `${lines.join("\n")}\n`;
}

const PAGES: Readonly<Record<string, () => string>> = {
  "config.md": renderConfigReference,
  "errors.md": renderErrorReference,
};

scriptOptions(HELP, {});
const folder = join(ROOT, "dist/docs");
mkdirSync(folder, { recursive: true });
for (const [name, render] of Object.entries(PAGES)) {
  const file = join(folder, name);
  writeFileSync(file, render());
  console.log(relative(ROOT, file));
}
