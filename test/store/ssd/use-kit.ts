import { afterAll, afterEach, test } from "bun:test";
import { loadNative, setFaults } from "../../../src/native/index.ts";
import { ringRefusal } from "../../faults/methods.ts";
import { describeNative, nativeVerdict, noteSkip, withTempDir } from "../../support/index.ts";
import { type Method, SsdHost, SsdKit, type SsdKitOptions } from "./ssd-kit.ts";

export interface KitTest {
  readonly host: SsdHost;
  readonly kit: SsdKit;
  readonly dir: string;
  /** Injects failures of system calls; an empty plan releases frozen calls. */
  faults(plan: string): void;
  /** Opens the same folder again after a clean stop, or the folder given by the options. */
  reopen(options?: Partial<SsdKitOptions>): Promise<SsdKit>;
}

export type KitOptions = Partial<SsdKitOptions>;

type DeclareTest = (
  name: string,
  options: KitOptions,
  run: (test: KitTest) => Promise<void>,
) => void;

async function methodsHere(): Promise<readonly Method[]> {
  if (nativeVerdict().kind !== "ready") return ["threads"];
  const refusal = await ringRefusal(loadNative());
  if (refusal === null) return ["threads", "io_uring"];
  noteSkip("the SSD tier by io_uring", refusal);
  return ["threads"];
}

const METHODS = await methodsHere();

/** Declares the suite once for each disk access method of this host. */
export function describeSsd(name: string, suite: (it: DeclareTest) => void): void {
  for (const method of METHODS) {
    describeNative(`${name}, by ${method}`, () => suite(useSsdKit(method)));
  }
}

/** Declares tests with a store on an empty folder. They fail if the test leaves a leak. */
export function useSsdKit(method: Method = "threads"): DeclareTest {
  const host = new SsdHost();
  afterEach(() => setFaults(host.native, ""));
  afterAll(() => host[Symbol.asyncDispose]());
  return (name, options, run) =>
    test(name, () =>
      withTempDir(async (temporary) => {
        const dir = `${temporary}/ssd`;
        await using stack = new AsyncDisposableStack();
        const open = async (own: SsdKitOptions) => {
          const kit = await SsdKit.open(host, own);
          stack.use(kit);
          return kit;
        };
        const kit = await open({ method, ...options, dir });
        let last = kit;
        const faults = (plan: string) => setFaults(host.native, plan);
        const reopen = async (own: KitOptions = {}) => {
          await last.close();
          last = await open({ method, ...options, dir, ...own });
          return last;
        };
        await run({ host, kit, dir, faults, reopen });
        faults("");
        await last.expectNothingLeft();
      }),
    );
}
