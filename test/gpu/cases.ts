import { join } from "node:path";
import { pythonEnvironment } from "../../scripts/lib/python.ts";

const ROOT = join(import.meta.dir, "../..");
const WORDS_SHOWN = 20;

/** At least so much of the plain loop's rate. */
const LARGE_OF_BARE = 0.9;
const SMALL_OF_BARE = 0.6;
const LONG_PROMPT = 15_002;
const RATIO = 11;

export interface CaseOptions {
  readonly library: string;
  /** Bounds on rates hold for real devices alone. */
  readonly isReal: boolean;
  readonly python: string | null;
  /** Null: where the benchmark puts it. */
  readonly dir: string | null;
}

export interface CaseResult {
  readonly name: string;
  readonly outcome: "ok" | "failed" | "skipped";
  readonly words: readonly string[];
  /** What was measured. */
  readonly rows: readonly Record<string, unknown>[];
}

/** How many of each, and whether that will do. */
export function tallyOf(results: readonly Pick<CaseResult, "outcome">[], isRequired: boolean) {
  const count = (wanted: CaseResult["outcome"]) =>
    results.filter(({ outcome }) => outcome === wanted).length;
  const [passed, failed, skipped] = [count("ok"), count("failed"), count("skipped")];
  return { passed, failed, skipped, isWell: failed === 0 && !(isRequired && skipped > 0) };
}

interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

async function run(words: readonly string[], env: Record<string, string> = {}): Promise<Ran> {
  const child = Bun.spawn([...words], {
    cwd: ROOT,
    env: { ...pythonEnvironment(), ...env },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, out, err };
}

function lastOf(text: string): string[] {
  return text.trimEnd().split("\n").slice(-WORDS_SHOWN);
}

/** What test/gpu/contract.test.ts shows, on this library. */
export async function checkContract({ library }: CaseOptions): Promise<CaseResult> {
  const file = "test/gpu/contract.test.ts";
  const words = [process.execPath, "test", file];
  const { code, err } = await run(words, { HEARTH_TEST_CUDA: library, REQUIRE_NATIVE: "1" });
  const name = "what the port of GPUs promises";
  if (code !== 0) return { name, outcome: "failed", words: lastOf(err), rows: [] };
  const passed = /(\d+) pass/.exec(err)?.[1] ?? "0";
  const isEmpty = passed === "0";
  return { name, outcome: isEmpty ? "failed" : "ok", words: [`${passed} tests`], rows: [] };
}

async function bench(words: readonly string[]): Promise<Ran & { rows: Record<string, unknown>[] }> {
  const ran = await run([process.execPath, "src/main.ts", "bench", ...words, "--json"]);
  const lines = ran.code === 0 ? ran.out.trimEnd().split("\n") : [];
  return { ...ran, rows: lines.map((line) => JSON.parse(line)) };
}

/** Problems of a row: figures that are not what they must be. */
function below(row: Record<string, unknown>, bounds: Record<string, number>): string[] {
  return Object.entries(bounds)
    .filter(([key, bound]) => !(Number(row[key]) >= bound))
    .map(([key, bound]) => `${key} is ${row[key]}, at least ${bound} is wanted`);
}

function verdict(
  name: string,
  ran: Ran & { rows: Record<string, unknown>[] },
  problemsOf: (row: Record<string, unknown>) => string[],
): CaseResult {
  const { code, err, rows } = ran;
  if (code !== 0 || rows.length === 0) return { name, outcome: "failed", words: lastOf(err), rows };
  const problems = rows.flatMap(problemsOf);
  const words = [...problems, ...rows.map((row) => JSON.stringify(row))];
  return { name, outcome: problems.length === 0 ? "ok" : "failed", words, rows };
}

/** `hearth bench gpu` beside the plain loop. */
export async function checkRates({ library, isReal }: CaseOptions): Promise<CaseResult> {
  const more = isReal ? [] : ["--bytes", "64MiB", "--rounds", "2"];
  const ran = await bench(["gpu", "--library", library, ...more]);
  const large = ["h2d", "d2h", "h2d_1mib", "d2h_1mib"].map((key) => [key, LARGE_OF_BARE]);
  const small = ["scatter", "gather"].map((key) => [key, SMALL_OF_BARE]);
  const bounds = [...large, ...small].map(([key, bound]) => [`${key}_of_bare`, bound]);
  return verdict("rates beside a plain loop over the driver", ran, (row) => [
    ...(row.wrong === 0 ? [] : [`${row.wrong} round trips came back wrong`]),
    ...(row.pageable === 0 ? [] : [`${row.pageable} copies were not asynchronous`]),
    ...(isReal ? below(row, Object.fromEntries(bounds)) : []),
  ]);
}

function notRestored(row: Record<string, unknown>): string[] {
  const wrong = ["ram_identical", "ssd_identical"].filter((key) => row[key] === false);
  return [
    ...wrong.map((key) => `${key}: what came back is not what was kept`),
    ...(row.pageable === 0 ? [] : [`${row.pageable} copies were not asynchronous`]),
  ];
}

/** An engine without PyTorch: every byte that is restored decides about what it computes. */
export async function checkEngine(options: CaseOptions): Promise<CaseResult> {
  const name = "an engine in Python, from RAM and from SSD";
  const { library, python, dir } = options;
  if (python === null) return { name, outcome: "skipped", words: ["no python3"], rows: [] };
  const shape = ["--shapes", "tiny", "--compute", "hash", "--block-tokens", "16"];
  const where = dir === null ? [] : ["--dir", dir];
  const ran = await bench([
    ...["ttft", "--library", library, "--python", python, ...shape, ...where],
    ...["--prompts", "300,1000", "--rounds", "2"],
  ]);
  return verdict(name, ran, notRestored);
}

/** The shapes of Qwen3-14B; those of a toy where there is no real GPU. */
export async function checkTtft(options: CaseOptions): Promise<CaseResult> {
  const name = "time to the first token, with PyTorch";
  const { library, python, dir, isReal } = options;
  const skipped = (why: string): CaseResult => ({
    name,
    outcome: "skipped",
    words: [why],
    rows: [],
  });
  if (python === null) return skipped("no python3");
  const asked = await run([python, "-c", "import torch; print(torch.cuda.is_available())"]);
  if (asked.code !== 0) return skipped(`${python} has no PyTorch: see --python`);
  if (isReal && asked.out.trim() !== "True") return skipped("PyTorch sees no GPU");
  const where = dir === null ? [] : ["--dir", dir];
  const toy = ["--shapes", "tiny", "--device", "cpu", "--prompts", "300,1000", "--rounds", "1"];
  const words = ["ttft", "--library", library, "--python", python, ...where];
  const ran = await bench([...words, ...(isReal ? [] : toy)]);
  return verdict(name, ran, (row) => [
    ...notRestored(row),
    ...(isReal && row.prompt_tokens === LONG_PROMPT ? below(row, { ram_ratio: RATIO }) : []),
  ]);
}
