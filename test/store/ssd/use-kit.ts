import { afterAll, afterEach, test } from "bun:test";
import { loadNative, setFaults } from "../../../src/native/index.ts";
import { ringRefusal } from "../../faults/methods.ts";
import { describeNative, nativeVerdict, noteSkip, withTempDir } from "../../support/index.ts";
import { type Method, SsdHost, SsdKit, type SsdKitOptions } from "./ssd-kit.ts";

export interface KitTest {
  readonly host: SsdHost;
  readonly kit: SsdKit;
  readonly dir: string;
  /** Plans failures of system calls; an empty plan lets go what is frozen. */
  faults(plan: string): void;
  /** The same folder opened again, after a clean stop unless told that it is another folder. */
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

/** A suite of tests that `it` declares, for each way there is here to reach the disk. */
export function describeSsd(name: string, suite: (it: DeclareTest) => void): void {
  for (const method of METHODS) {
    describeNative(`${name}, by ${method}`, () => suite(useSsdKit(method)));
  }
}

/** Declares tests that get a store on an empty folder, and fail where it leaves anything behind. */
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
