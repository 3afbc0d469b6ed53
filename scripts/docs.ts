/** `bun run docs`: the reference pages that are generated from the code. */
import { writeFileSync } from "node:fs";
import { relative } from "node:path";
import { scriptOptions } from "./lib/arguments.ts";
import { ROOT } from "./lib/paths.ts";
import { staleReference } from "./lib/reference.ts";

const HELP = `
Writes the reference pages that are generated from the code to docs/reference/.

  bun run docs             writes the pages whose text has changed
  bun run docs --check     writes nothing and fails if a page is stale

Exit codes: 0 the pages are up to date; 1 a page is stale or cannot be made; 2 wrong usage.
`;

const { check } = scriptOptions(HELP, { check: { type: "boolean", default: false } });
const pages = await staleReference();
if (!pages.ok) {
  console.error(pages.output);
  process.exit(1);
}
for (const { file, text } of pages.stale) {
  if (!check) writeFileSync(file, text);
  console.log(`${check ? "stale" : "written"}: ${relative(ROOT, file)}`);
}
process.exit(check && pages.stale.length > 0 ? 1 : 0);
