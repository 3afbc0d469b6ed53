import { describe, expect, test } from "bun:test";
import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import { ROOT } from "../../scripts/lib/paths.ts";
import { run } from "../../scripts/lib/run.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";
import { buildWheels, writeWheels } from "../../scripts/lib/wheels.ts";
import { FROM_CHECKOUT } from "../app/agent-process.ts";
import { writeTokenizer } from "../router/proxy/tokenizer-files.ts";
import {
  describeNative,
  describePython,
  hearthExecutable,
  makeCluster,
  noteSkip,
  tempDir,
} from "../support/index.ts";
import { blocksOf, PLANS, Printed, runPage, STAND_INS, type Step, unreadFences } from "./pages.ts";

const PAGE_MS = 300_000;
const CHECKED = [...new Glob("docs/how-to/*.md").scanSync({ cwd: ROOT }), "docs/start.md"].sort();

/** Sections that a configuration needs and a page may leave out. */
const NEEDED = { node: 'id = "gpu-01"', kv: "ram_gib = 0.25" };

/** An engine stores the blocks of prompt.txt. The model's name makes the namespace begin with 3f9a. */
const STORE_PROMPT = `
import os
from hearth_client import Client, Manifest
manifest = Manifest(model="demo/llama-50856", dtype="bfloat16", layout="example:flat", block_tokens=32)
with Client(os.environ["HEARTH_SOCKET"], manifest) as hearth:
    digests = hearth.identify(range(96))
    for parent, digest in zip([None, *digests], digests):
        hearth.put(digest, parent, digest * 1024)
`;

/** A request a line, as \`hearth bench policy\` reads it. */
const TRACE = Array.from({ length: 40 }, (_, index) =>
  JSON.stringify({
    ...{ timestamp: index * 1_000, input_length: 1_024, output_length: 1 },
    hash_ids: [1, 2 + (index % 7)],
  }),
).join("\n");

test("every shell block of the start page and of how-to pages is run or says why not", () => {
  const without = CHECKED.flatMap((page) => {
    const steps = PLANS[page]?.steps ?? [];
    const run = new Set(steps.filter((step) => step.page === undefined).map((step) => step.block));
    return blocksOf(page, "sh")
      .map((block, index) => ({ ...block, isRun: run.has(index) }))
      .filter(({ isRun, notRun }) => isRun === (notRun !== null))
      .map(({ line }) => `${page}:${line}`);
  });
  expect(without).toEqual([]);
});

/** Files that configurations of pages name: a host of the cluster prod, a NATS user, a tokenizer. */
function placeFiles(folder: string): void {
  const [etc, models] = [join(folder, "etc"), join(folder, "models")];
  const { certFile, keyFile, caFile } = makeCluster(etc, "prod").files("gpu-01");
  renameSync(certFile, join(etc, "gpu-01.crt"));
  renameSync(keyFile, join(etc, "gpu-01.key"));
  renameSync(caFile, join(etc, "ca.crt"));
  writeFileSync(join(etc, "nats-user"), "name\npassword\n", { mode: 0o600 });
  mkdirSync(models);
  renameSync(writeTokenizer(models), join(models, "Qwen3-8B"));
}

test("these pages have no fences that the tests do not read", () => {
  expect(CHECKED.flatMap((page) => unreadFences(page))).toEqual([]);
});

test("every stand-in stands for printed words", () => {
  const text = CHECKED.map((page) => readFileSync(join(ROOT, page), "utf8")).join("\n");
  expect(STAND_INS.filter(([printed]) => !text.includes(printed))).toEqual([]);
});

describe("configurations in pages are accepted by hearth check", () => {
  const folder = tempDir();
  placeFiles(folder);
  const pages = ["*.md", "docs/**/*.md", "python/**/*.md"].flatMap((pattern) => [
    ...new Glob(pattern).scanSync({ cwd: ROOT }),
  ]);
  // Examples of the generated pages are in test/config/parse.test.ts.
  const written = pages.filter((page) => !page.startsWith("docs/reference/config-")).sort();
  const blocks = written.flatMap((page) => blocksOf(page, "toml"));
  expect(blocks.length).toBeGreaterThan(8);
  test.each(blocks.map((block) => [`${block.page}:${block.line}`, block] as const))(
    "%s",
    async (_name, { text }) => {
      const isRouter = /^\[(?:router|proxy|policies|workers\.|models\.)/m.test(text);
      const needed = isRouter ? [] : Object.entries(NEEDED);
      const more = needed.filter(([section]) => !text.includes(`[${section}]`));
      const whole = `${text}\n${more.map(([section, keys]) => `[${section}]\n${keys}\n`).join("")}`;
      const file = join(folder, "checked.toml");
      writeFileSync(file, new Printed(folder).here(whole));
      const words = ["check", ...(isRouter ? ["--router"] : []), file];
      const { ok, output } = await run([...FROM_CHECKOUT, ...words], { cwd: ROOT });
      expect(ok ? "" : output).toBe("");
    },
    PAGE_MS,
  );
});

describeNative("pages", () => {
  describePython("pages", () => {
    const hasPip = Bun.which("pip") !== null;
    if (!hasPip) noteSkip("pages: installation of wheels", "no pip on the PATH");
    const installs = (step: Step, page: string) =>
      blocksOf(step.page ?? page, "sh")[step.block]!.text.startsWith("pip ");
    for (const [page, { steps }] of Object.entries(PLANS)) {
      const leaveOut = (step: Step) =>
        step.needsEngine === true || (!hasPip && installs(step, page));
      if (steps.every((step) => step.page !== undefined || leaveOut(step))) continue;
      test(
        `${page} runs as printed`,
        async () => {
          const folder = tempDir();
          if (hasPip && steps.some((step) => installs(step, page))) {
            const host = hostTarget();
            if (!host.ok) throw new Error(host.why);
            writeWheels(await buildWheels([host.target]), join(folder, "dist"));
          }
          writeFileSync(join(folder, "store_prompt.py"), STORE_PROMPT);
          writeFileSync(join(folder, "prompt.txt"), `${[...Array(96).keys()].join(" ")}\n`);
          writeFileSync(join(folder, "trace.jsonl"), TRACE);
          const result = await runPage({
            ...{ page, folder, leaveOut, executable: await hearthExecutable(), limitMs: PAGE_MS },
          });
          expect(result.why).toBe("");
        },
        2 * PAGE_MS,
      );
    }
  });
});
