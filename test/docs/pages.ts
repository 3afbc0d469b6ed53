import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { freePort } from "../engines/kit/server.ts";

/** A fenced block of a page. */
export interface Block {
  readonly page: string;
  readonly line: number;
  readonly language: string;
  /** Why it is not run, as the fence's info string says: `sh not-run: needs two hosts`. */
  readonly notRun: string | null;
  readonly text: string;
}

/** The fenced blocks of a page in one language, in order. */
export function blocksOf(page: string, language: string): Block[] {
  const text = readFileSync(join(ROOT, page), "utf8");
  return [...text.matchAll(/^```(\w+)(?: not-run: ([^\n]+))?\n([\s\S]*?)^```$/gm)]
    .map(({ 1: found = "", 2: notRun = null, 3: block = "", index }) => {
      const line = text.slice(0, index).split("\n").length;
      return { page, line, language: found, notRun, text: block };
    })
    .filter((block) => block.language === language);
}

/** Fences of a page that `blocksOf` does not read: in lists, or with other info strings. */
export function unreadFences(page: string): string[] {
  const lines = readFileSync(join(ROOT, page), "utf8").split("\n");
  const known = /^(?:```|```toml|```sh|```sh not-run: .+)$/;
  return lines.filter((line) => /^\s*(?:```|~~~)/.test(line) && !known.test(line));
}

/** One run of a shell block. */
export interface Step {
  /** Where the block is; this page by default. */
  readonly page?: string;
  /** Number of the shell block in its page. */
  readonly block: number;
  /** Only on a host with the engine of the plan. */
  readonly needsEngine?: true;
  /** The block is a server that stays: the condition that shows that it serves. */
  readonly until?: string;
  /** The port that an engine's server gets instead of its usual one. */
  readonly port?: number;
  /** Waits until the agent has stored everything, then ends the server of the same block. */
  readonly restarts?: true;
  readonly prints?: RegExp;
}

/** How the blocks of a page are run. */
export interface Plan {
  readonly engine?: "vllm" | "sglang" | "lmcache";
  /** Files of the page's configuration blocks, with what only this host needs. */
  readonly files?: readonly {
    readonly page?: string;
    readonly block: number;
    readonly to: string;
    readonly more: string;
  }[];
  readonly steps: readonly Step[];
}

const VLLM = "docs/how-to/connect-vllm.md";
const SGLANG = "docs/how-to/connect-sglang.md";

const AGENT_FILE = {
  ...{ page: VLLM, block: 0, to: "/etc/hearth/hearth.toml" },
  more:
    '[engine]\nsocket = "/run/hearth/engine.sock"\n' +
    '[api]\nlisten = "127.0.0.1:7171"\nsocket = "/run/hearth/api.sock"\n',
};

const serves = (address: string) => `curl -sf http://127.0.0.1:${address}`;
const AGENT_SERVES = serves("7171/readyz");
const AGENT: Step = { page: VLLM, block: 0, until: AGENT_SERVES };
const HIT = /'cached_tokens': [1-9]/;

/** Every page with shell blocks that are checked, and how they run. */
export const PLANS: Readonly<Record<string, Plan>> = {
  "docs/start.md": {
    steps: [
      { block: 0 },
      { block: 1 },
      { block: 2 },
      { block: 3 },
      { block: 4, prints: /^hit: \[True, True\]$/m },
      // After the restart both blocks are on SSD.
      { block: 5, prints: /^ +0 .* ssd [\s\S]*^ +1 .* ssd /m },
      { block: 6 },
    ],
  },
  [VLLM]: {
    engine: "vllm",
    files: [AGENT_FILE],
    steps: [
      { block: 0, until: AGENT_SERVES },
      { block: 1 },
      { block: 2, needsEngine: true, until: serves("8000/health") },
      { block: 3, needsEngine: true },
      {
        ...{ block: 2, needsEngine: true, restarts: true },
        until: serves("8000/health"),
      },
      { block: 3, needsEngine: true, prints: HIT },
    ],
  },
  [SGLANG]: {
    engine: "sglang",
    files: [{ ...AGENT_FILE, page: SGLANG }],
    steps: [
      { block: 0, until: AGENT_SERVES },
      { block: 1 },
      { block: 2, needsEngine: true, until: serves("30000/health") },
      { block: 3, needsEngine: true },
      {
        ...{ block: 2, needsEngine: true, restarts: true },
        until: serves("30000/health"),
      },
      {
        ...{ block: 3, needsEngine: true },
        prints: /'storage': [1-9]\d*, 'storage_backend': 'HearthStorage'/,
      },
    ],
  },
  "docs/how-to/connect-lmcache.md": {
    engine: "lmcache",
    files: [AGENT_FILE],
    steps: [
      AGENT,
      { block: 0 },
      { block: 1, needsEngine: true, prints: /All 32 keys data verified OK/ },
      { block: 2, needsEngine: true, until: serves("8080/healthcheck") },
    ],
  },
  "docs/how-to/route-vllm.md": {
    engine: "vllm",
    files: [
      {
        ...{ block: 0, to: "config/two-vllm.toml" },
        more: '[api]\nlisten = "127.0.0.1:7181"\n',
      },
    ],
    steps: [
      { block: 0, needsEngine: true, until: serves("8001/health") },
      { block: 1, needsEngine: true, until: serves("8002/health") },
      { block: 2, needsEngine: true, until: serves("7181/readyz") },
      { block: 3, needsEngine: true, prints: /"role": ?"assistant"/ },
    ],
  },
  "docs/how-to/disaggregate-prefill.md": {
    engine: "vllm",
    files: [AGENT_FILE],
    steps: [
      AGENT,
      { page: VLLM, block: 1 },
      {
        ...{ page: VLLM, block: 2, needsEngine: true, port: 8001 },
        until: serves("8001/health"),
      },
      {
        ...{ page: VLLM, block: 2, needsEngine: true, port: 8002 },
        until: serves("8002/health"),
      },
      { block: 0, needsEngine: true, prints: /"text_completion"/ },
      {
        ...{ block: 1, needsEngine: true },
        prints: /^vllm:external_prefix_cache_hits_total\{.*\} [1-9]/m,
      },
    ],
  },
  "docs/how-to/debug-a-miss.md": {
    files: [AGENT_FILE],
    steps: [
      { ...AGENT, until: `${AGENT_SERVES} && PYTHONPATH=python python3 store_prompt.py` },
      { block: 0, prints: /never_stored[\s\S]*^3 of 3 blocks hit in a row$/m },
    ],
  },
  "docs/how-to/size-ram-and-ssd.md": {
    steps: [{ block: 0, prints: /^trace +10000 +best /m }],
  },
};

/** Printed words and their stand-ins on this host; `$HERE` is the folder of the run. */
export const STAND_INS: readonly (readonly [printed: string, here: string])[] = [
  ["./dev build", "# built before"],
  ["/tmp/hearth-try", "$HERE/try"],
  ["/etc/hearth/", "$HERE/etc/"],
  ["/run/hearth/", "$HERE/run/"],
  ["/var/cache/hearth", "$HERE/ssd"],
  ["/var/lib/hearth/models/", "$HERE/models/"],
  ["ram_gib = 64", "ram_gib = 0.25"],
  ["ssd_gib = 500", "ssd_gib = 1"],
  [
    "lmcache server --l1-size-gb 20",
    "lmcache server --port 5555 --http-port 8080 --prometheus-port 9090 --l1-size-gb 1",
  ],
  // A busy host keeps the agent from the processor for longer than the default of 100 ms.
  [
    `"class_name": "HearthL2Adapter"}'`,
    `"class_name": "HearthL2Adapter", "adapter_params": {"stall_ms": 10000}}'`,
  ],
  ["10.0.0.1:8000", "127.0.0.1:8001"],
  ["10.0.0.2:8000", "127.0.0.1:8002"],
];

/** Ports of pages; each is another one on this host, which other programs do not use. */
const PORTS = [7171, 7181, 8000, 8001, 8002, 8080, 5555, 5701, 5702, 5711, 5712, 9090, 30000];
const PORT = new RegExp(
  `(?<=(?:127\\.0\\.0\\.1|localhost|\\*):|-port )(?:${PORTS.join("|")})\\b`,
  "g",
);

/** A program of the PATH that adds what only this host needs to the printed words. */
export interface Program {
  readonly command: string;
  /** Options of a small host; they override printed ones. */
  readonly words: string;
  /** The printed port of its server, if no `--port` is printed. */
  readonly port?: number;
}

export interface PageRun {
  readonly page: string;
  /** A new folder; the current one of the blocks. */
  readonly folder: string;
  readonly executable: string;
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Engines of this host by their printed name; without them their steps are left out. */
  readonly programs?: Readonly<Record<string, Program>>;
  readonly leaveOut?: (step: Step) => boolean;
  /** Hang detector of the whole page. */
  readonly limitMs: number;
}

export interface PageResult {
  readonly ok: boolean;
  /** The failure, with the end of all output; empty if there is none. */
  readonly why: string;
  readonly blocks: number;
}

/** Replaces what `STAND_INS` and `PORTS` name. */
export class Printed {
  readonly #folder: string;
  readonly #ports = new Map(PORTS.map((port) => [String(port), String(freePort())]));

  constructor(folder: string) {
    this.#folder = folder;
  }

  here(text: string): string {
    const replaced = STAND_INS.reduce((words, [from, to]) => words.replaceAll(from, to), text);
    return replaced
      .replaceAll("$HERE", this.#folder)
      .replace(PORT, (port) => this.#ports.get(port)!);
  }
}

/** Places files in the folder of the blocks, and programs on their PATH. */
function prepare({ page, folder, executable, programs = {} }: PageRun, printed: Printed): void {
  for (const name of ["bin", "dist", "etc", "run", "ssd", "models", "config"]) {
    mkdirSync(join(folder, name), { recursive: true });
  }
  for (const name of ["README.md", "ARCHITECTURE.md", "python"]) {
    symlinkSync(join(ROOT, name), join(folder, name));
  }
  symlinkSync(executable, join(folder, "dist", "hearth"));
  const api = printed.here("http://127.0.0.1:7171");
  const own = `case "$1" in ctl) set -- "$@" --api ${api};; esac\nexec ${executable} "$@"\n`;
  writeFileSync(join(folder, "bin", "hearth"), `#!/bin/sh\n${own}`, { mode: 0o755 });
  for (const [name, { command, words, port }] of Object.entries(programs)) {
    const printedPort = port === undefined ? "" : printed.here(`--port ${port}`);
    const script = [
      "#!/bin/sh",
      `case "$*" in *"--port "*) port=;; *) port=\${PORT_WORDS:-${printedPort}};; esac`,
      `exec ${command} "$@" $port ${printed.here(words)}`,
      "",
    ];
    writeFileSync(join(folder, "bin", name), script.join("\n"), { mode: 0o755 });
  }
  for (const { page: other = page, block, to, more } of PLANS[page]!.files ?? []) {
    const text = printed.here(blocksOf(other, "toml")[block]!.text + more);
    const path = printed.here(to);
    writeFileSync(path.startsWith("/") ? path : join(folder, path), text);
  }
}

/** Waits until no engine stores and nothing waits for the SSD, for a second. */
const SETTLED = `python3 - <<'END'
import json, time, urllib.request
quiet = 0
while quiet < 5:
    status = json.load(urllib.request.urlopen("http://127.0.0.1:7171/v1/status"))
    queued = (status.get("ssd") or {}).get("queued_blocks", 0)
    quiet = 0 if status["engine"]["slots_held"] or queued else quiet + 1
    time.sleep(0.2)
END`;

const MARK = "=== step ";

function scriptOf(page: string, steps: readonly Step[], printed: Printed): string {
  const script = steps.map(({ page: other = page, block, until, port, restarts }, index) => {
    const { text } = blocksOf(other, "sh")[block]!;
    const words = printed.here(`${MARK}${index}: block ${block} of ${other}`);
    const server = `server_${block}_${port ?? 0}`;
    const end = `kill -TERM -- -$${server}; wait $${server} || true`;
    const lines = [`echo '${words}'`, ...(restarts ? [printed.here(SETTLED), end] : [])];
    if (until === undefined) return [...lines, printed.here(text)].join("\n");
    const log = `${server}.log`;
    const portWords = port === undefined ? "" : printed.here(`--port ${port}`);
    return [
      ...lines,
      `export PORT_WORDS='${portWords}'`,
      `{ ${printed.here(text)}} > ${log} 2>&1 &`,
      `${server}=$!`,
      `until ${printed.here(until)} > /dev/null; do`,
      `kill -0 $${server} || { tail -n 40 ${log} >&2; exit 1; }`,
      "sleep 0.2; done",
    ].join("\n");
  });
  const clean = 'for job in $(jobs -p); do kill -KILL -- "-$job"; done 2> /dev/null';
  return ["set -e", "set -m", `trap '${clean}' EXIT`, "trap 'exit 1' TERM", ...script, ""].join(
    "\n",
  );
}

/** Runs the blocks of a page as printed, except for `STAND_INS`, in one shell. */
export async function runPage(run: PageRun): Promise<PageResult> {
  const { page, folder, limitMs, leaveOut = () => false } = run;
  const steps = PLANS[page]!.steps.filter((step) => !leaveOut(step));
  const printed = new Printed(folder);
  prepare(run, printed);
  const env = {
    ...process.env,
    HEARTH_SOCKET: join(folder, "run", "engine.sock"),
    PIP_TARGET: join(folder, "site-packages"),
    PYTHONPATH: join(folder, "site-packages"),
    ...run.env,
    PATH: `${join(folder, "bin")}:${process.env.PATH}`,
  };
  const child = Bun.spawn(["bash", "-c", scriptOf(page, steps, printed)], {
    ...{ cwd: folder, env, stdout: "pipe", stderr: "pipe" },
  });
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    child.kill("SIGTERM");
  }, limitMs);
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  const code = await child.exited;
  clearTimeout(timer);
  const outputs = out.split(MARK).slice(1);
  const silent = steps.findIndex(
    ({ prints }, index) => prints?.test(outputs[index] ?? "") === false,
  );
  const tail = `${out.slice(-4_000)}\n${err.slice(-4_000)}`;
  const blocks = new Set(steps.map(({ page: other = page, block }) => `${other} ${block}`)).size;
  if (isLate) return { ok: false, blocks, why: `${page} hung\n${tail}` };
  if (code !== 0) return { ok: false, blocks, why: `${page} failed: ${code}\n${tail}` };
  if (silent === -1) return { ok: true, blocks, why: "" };
  const wanted = steps[silent]!.prints;
  return { ok: false, blocks, why: `${page}: step ${silent} did not print ${wanted}\n${tail}` };
}
