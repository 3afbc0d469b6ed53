import { rmSync } from "node:fs";
import { HearthError } from "../../../core/index.ts";

export interface FioOptions {
  /** The file that fio reads and overwrites; made by `Fio.layOut`. */
  readonly file: string;
  readonly bytes: number;
  readonly depth: number;
  readonly direct: boolean;
  readonly signal: AbortSignal;
}

interface FioJob {
  readonly rw: "read" | "write" | "randread";
  readonly blockBytes: number;
  readonly depth: number;
  /** All of the file where it is absent. */
  readonly count?: number;
  /** A file that is not there yet, written while it is made; else `file` is overwritten. */
  readonly makes?: string;
}

/** One direction of a job in fio's JSON report, as far as it is looked at. */
interface FioFigures {
  readonly bw_bytes: number;
  readonly lat_ns: { readonly percentile?: Readonly<Record<string, number>> };
}

/** The best first; the last keeps `depth` calls going on as many threads. */
const ENGINES = [
  { name: "io_uring, registered", words: ["--ioengine=io_uring", "--fixedbufs=1"] },
  { name: "io_uring", words: ["--ioengine=io_uring"] },
  { name: "libaio", words: ["--ioengine=libaio"] },
  { name: "psync", words: ["--ioengine=psync"] },
] as const;
type Engine = (typeof ENGINES)[number];

const NS_PER_MS = 1e6;

/** The flexible I/O tester as a peer: one large file, so that no file system call is in its way. */
export class Fio {
  readonly #program: string;
  readonly #options: FioOptions;
  readonly #engine: Engine;
  private constructor(program: string, options: FioOptions, engine: Engine) {
    this.#program = program;
    this.#options = options;
    this.#engine = engine;
  }

  /** Null where the host has no fio. */
  static find(): string | null {
    return Bun.which("fio");
  }

  /**
   * Writes the file once from end to end, so that later writes allocate nothing, with the first
   * engine that this host lets fio use. Throws UNSUPPORTED where none works.
   */
  static async layOut(program: string, options: FioOptions, blockBytes: number): Promise<Fio> {
    let refusal = "";
    for (const engine of ENGINES) {
      const fio = new Fio(program, options, engine);
      const { depth } = options;
      const answer = await fio.#run({ rw: "write", blockBytes, depth });
      if (answer.ok) return fio;
      refusal = answer.why;
    }
    throw refused(refusal);
  }

  get engine(): string {
    return this.#engine.name;
  }

  /** 10^9 bytes a second over the whole file. */
  async gbps(rw: "read" | "write", blockBytes: number): Promise<number> {
    const figures = await this.#figures({ rw, blockBytes, depth: this.#options.depth });
    return figures.bw_bytes / 1e9;
  }

  /** 10^9 bytes a second while a new file of that length comes to be; it is removed after that. */
  async makesGbps(blockBytes: number): Promise<number> {
    const makes = `${this.#options.file}-new`;
    const { depth } = this.#options;
    const figures = await this.#figures({ rw: "write", blockBytes, depth, makes });
    rmSync(makes, { force: true });
    return figures.bw_bytes / 1e9;
  }

  /** Milliseconds from submission to completion of `count` reads, one at a time, anywhere. */
  async singleReads(blockBytes: number, count: number): Promise<{ p50Ms: number; p99Ms: number }> {
    const figures = await this.#figures({ rw: "randread", blockBytes, depth: 1, count });
    const ms = (name: string) => (figures.lat_ns.percentile?.[name] ?? Number.NaN) / NS_PER_MS;
    return { p50Ms: ms("50.000000"), p99Ms: ms("99.000000") };
  }

  async #figures(job: FioJob): Promise<FioFigures> {
    const answer = await this.#run(job);
    if (answer.ok) return answer.figures;
    throw refused(answer.why);
  }

  async #run(job: FioJob): Promise<{ ok: true; figures: FioFigures } | { ok: false; why: string }> {
    const { signal } = this.#options;
    const fio = Bun.spawn([this.#program, ...this.#words(job)], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
      signal,
    });
    const [out, err] = await Promise.all([fio.stdout.text(), fio.stderr.text()]);
    const code = await fio.exited;
    signal.throwIfAborted();
    // Warnings may stand before the document.
    const start = out.indexOf("{\n");
    if (code !== 0 || start < 0) {
      return {
        ok: false,
        why: (err || out).trim().split("\n")[0] || `fio ended with code ${code}`,
      };
    }
    const report = JSON.parse(out.slice(start)) as {
      jobs: [{ error: number; read: FioFigures; write: FioFigures }];
    };
    const [{ error, read, write }] = report.jobs;
    if (error !== 0) return { ok: false, why: `fio met errno ${error}` };
    return { ok: true, figures: job.rw === "write" ? write : read };
  }

  #words({ rw, blockBytes, depth, count, makes }: FioJob): string[] {
    const { file, bytes, direct } = this.#options;
    const isSync = this.#engine.name === "psync";
    const share = Math.floor(bytes / depth / blockBytes) * blockBytes;
    const parallel = isSync
      ? [`--numjobs=${depth}`, `--size=${share}`, `--offset_increment=${share}`]
      : [`--iodepth=${depth}`, `--size=${bytes}`];
    return [
      "--name=hearth",
      `--filename=${makes ?? file}`,
      `--rw=${rw}`,
      `--bs=${blockBytes}`,
      `--direct=${direct ? 1 : 0}`,
      ...this.#engine.words,
      ...parallel,
      ...(count === undefined ? [] : [`--io_size=${count * blockBytes}`]),
      // Shared memory, as the arena is: pages that lie together take fewer requests.
      "--mem=mmapshared",
      ...(makes === undefined ? ["--overwrite=1"] : ["--overwrite=0", "--fallocate=none"]),
      "--thread",
      "--group_reporting",
      "--lat_percentiles=1",
      "--clat_percentiles=0",
      "--percentile_list=50:99",
      "--output-format=json",
    ];
  }
}

function refused(why: string): HearthError {
  const fix = "give --without-fio for Hearth's own figures alone";
  return new HearthError("UNSUPPORTED", `fio cannot measure this folder (${why})`, { fix });
}
