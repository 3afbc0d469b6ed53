/** `bun run docs`: the reference pages, as `hearth reference` prints them. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { scriptOptions } from "./lib/arguments.ts";
import { ROOT } from "./lib/paths.ts";
import { run } from "./lib/run.ts";

const HELP = `
Writes the reference pages that are generated from the code, one a topic, to dist/docs/.

  bun run docs

Exit codes: 0 written; 1 a page could not be made; 2 wrong usage.
`;

const TOPICS = ["commands", "config", "errors", "health", "metrics", "router"];

scriptOptions(HELP, {});
const folder = join(ROOT, "dist/docs");
mkdirSync(folder, { recursive: true });
for (const topic of TOPICS) {
  const page = await run([process.execPath, "src/main.ts", "reference", topic]);
  if (!page.ok) {
    console.error(`${page.output}docs: \`hearth reference ${topic}\` failed (exit ${page.code})`);
    process.exit(1);
  }
  const file = join(folder, `${topic}.md`);
  writeFileSync(file, page.output);
  console.log(relative(ROOT, file));
}
