import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Machine } from "./machine.ts";

/** What came of one case: a step of a guest's job, or a test of a suite that ran in it. */
export interface CaseResult {
  readonly lane: string;
  readonly name: string;
  readonly outcome: "ok" | "failed" | "skipped";
  readonly seconds: number;
  /** Of a failed one: the last lines of what it said. */
  readonly words: readonly string[];
}

const WORDS_SHOWN = 25;
/** Of a guest that never said how its job ended. */
const CONSOLE_SHOWN = 15;

/**
 * In front of each job. `step NAME SECONDS COMMAND…` runs a command of the guest or of the host's
 * tree, keeps what it says in the shared folder, and tells the host of its beginning and end;
 * `suite NAME SECONDS FILE` runs tests of the checkout.
 */
export const JOB_HELPERS = `
failures=0
step() {
  name=$1
  limit=$2
  shift 2
  say "begin $name"
  b timeout "$limit" "$@" > "/out/$name.log" 2>&1
  code=$?
  say "end $name $code"
  if [ "$code" != 0 ]; then failures=$((failures + 1)); fi
}
enter="/bin/busybox chroot /host /bin/sh /run/out/enter.sh"
suite() {
  step "$1" "$2" $enter bun --config=/run/out/bunfig.toml test --timeout 120000 "./$3" \\
    --reporter=junit "--reporter-outfile=/run/out/$1.xml"
}
`;

/** Follows a guest's job and makes results of what it says. */
export class Steps {
  readonly results: CaseResult[] = [];
  readonly #lane: string;
  readonly #folder: string;
  readonly #tell: (result: CaseResult) => void;
  #open: { name: string; startMs: number } | null = null;

  constructor(lane: string, folder: string, tell: (result: CaseResult) => void) {
    this.#lane = lane;
    this.#folder = folder;
    this.#tell = tell;
  }

  readonly onLine = (line: string): void => {
    const [verb, name, code] = line.split(" ");
    if (verb === "begin") this.#open = { name: name!, startMs: performance.now() };
    if (verb === "end") this.#close(code === "0", code === "143" ? ["took too long"] : []);
  };

  add(name: string, ok: boolean, seconds: number, words: readonly string[]): void {
    const outcome = ok ? "ok" : "failed";
    this.#push({ lane: this.#lane, name, outcome, seconds, words });
  }

  /** The guest ended: whatever was under way has failed. */
  async over(machine: Machine): Promise<void> {
    const ending = await machine.ended;
    const why = ending.kind === "done" ? [] : [`the guest ${machine.name} ended: ${ending.kind}`];
    if (this.#open !== null) this.#close(false, why);
    else if (why.length > 0) this.add("guest", false, 0, [...why, ...machine.tail(CONSOLE_SHOWN)]);
  }

  #push(result: CaseResult): void {
    this.results.push(result);
    this.#tell(result);
  }

  #close(ok: boolean, why: readonly string[]): void {
    const { name, startMs } = this.#open!;
    this.#open = null;
    const seconds = (performance.now() - startMs) / 1_000;
    const log = join(this.#folder, `${name}.log`);
    const said = existsSync(log) ? readFileSync(log, "utf8").trimEnd().split("\n") : [];
    const report = join(this.#folder, `${name}.xml`);
    const tests = existsSync(report) ? testsOf(readFileSync(report, "utf8")) : [];
    for (const test of tests)
      this.#push({ lane: this.#lane, ...test, name: `${name}: ${test.name}` });
    const words = ok ? [] : [...why, ...said.slice(-WORDS_SHOWN)];
    this.add(name, ok, seconds, words);
  }
}

const ENTITIES = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&" };

function plain(text: string): string {
  return text.replace(
    /&(?:lt|gt|quot|apos|amp);/g,
    (name) => ENTITIES[name as keyof typeof ENTITIES],
  );
}

/** The tests of a report in the format of JUnit. */
export function testsOf(xml: string): Omit<CaseResult, "lane">[] {
  const tests: Omit<CaseResult, "lane">[] = [];
  for (const [, attributes, , body] of xml.matchAll(
    /<testcase ([^>]*?)(\/>|>([\s\S]*?)<\/testcase>)/g,
  )) {
    const attribute = (name: string) =>
      plain(new RegExp(`(?:^| )${name}="([^"]*)"`).exec(attributes!)?.[1] ?? "");
    const outcome = body?.includes("<failure") || body?.includes("<error") ? "failed" : "ok";
    tests.push({
      name: attribute("name"),
      outcome: body?.includes("<skipped") ? "skipped" : outcome,
      seconds: Number(attribute("time")),
      words: [],
    });
  }
  return tests;
}
