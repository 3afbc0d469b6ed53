/** `bun run check`: everything a change must pass, one line a step. */
import { scriptOptions } from "./lib/arguments.ts";
import { ensureBindings } from "./lib/native-build.ts";
import { startProgress } from "./lib/progress.ts";
import { staleReference } from "./lib/reference.ts";
import { run, seconds } from "./lib/run.ts";
import { biome, bunTest, tsc, zigSources } from "./lib/tools.ts";
import { findZig, zigEnvironment } from "./lib/zig.ts";

const HELP = `
Runs every check and tells what failed at the end.

  bun run check            format, lint, types, generated files, house rules, all tests
  bun run check --fast     the same without the tests

Exit codes: 0 all is well; 1 something failed; 2 wrong usage.
`;

type StepResult =
  | { readonly kind: "ok" }
  | { readonly kind: "skipped"; readonly why: string }
  | { readonly kind: "failed"; readonly output: string };

interface Step {
  readonly name: string;
  run(): Promise<StepResult>;
}

function command(name: string, words: string[], env?: Record<string, string | undefined>): Step {
  return {
    name,
    async run() {
      const result = await run(words, env === undefined ? {} : { env });
      return result.ok ? { kind: "ok" } : { kind: "failed", output: result.output };
    },
  };
}

const zigFormat: Step = {
  name: "format of zig",
  run() {
    const zig = findZig();
    if (zig === undefined)
      return Promise.resolve({ kind: "skipped", why: "no Zig in node_modules" });
    const words = [zig, "fmt", "--check", ...zigSources()];
    return command(this.name, words, zigEnvironment()).run();
  },
};

// Before anything that may build: a build in a checkout brings the bindings up to date by itself.
const bindings: Step = {
  name: "generated bindings are fresh",
  async run() {
    const outcome = await ensureBindings("check");
    if (outcome.kind === "skipped") return outcome;
    if (outcome.kind !== "failed") return { kind: "ok" };
    return { kind: "failed", output: `${outcome.output}${outcome.why}\n` };
  },
};

const reference: Step = {
  name: "reference pages are fresh",
  async run() {
    const pages = await staleReference();
    if (!pages.ok) return { kind: "failed", output: `${pages.output}\n` };
    if (pages.stale.length === 0) return { kind: "ok" };
    const names = pages.stale.map(({ file }) => file).join("\n");
    return { kind: "failed", output: `${names}\nstale: run ./dev docs and commit the pages\n` };
  },
};

const FAST: Step[] = [
  bindings,
  command("format and lint", biome("ci", "--colors=off", ".")),
  zigFormat,
  reference,
  command("types", tsc("--noEmit", "-p", ".")),
  command("import rules and tidiness", bunTest("--only-failures", "test/house")),
];

const TESTS = command("tests", [process.execPath, "scripts/test.ts"]);

const options = scriptOptions(HELP, { fast: { type: "boolean", default: false } });
const failures: { name: string; output: string }[] = [];

for (const step of options.fast ? FAST : [...FAST, TESTS]) {
  const started = performance.now();
  const progress = startProgress(`check: ${step.name}`);
  const result = await step.run();
  const time = seconds(performance.now() - started);
  if (result.kind === "failed") failures.push({ name: step.name, output: result.output });
  const why = result.kind === "skipped" ? `: ${result.why}` : "";
  progress.end(`${result.kind.padEnd(7)} ${step.name} (${time})${why}`);
}

for (const { name, output } of failures) console.log(`\n--- ${name}\n${output.trimEnd()}`);
if (failures.length > 0) {
  console.log(`\ncheck failed: ${failures.map(({ name }) => name).join(", ")}`);
  process.exit(1);
}
console.log("check passed");
