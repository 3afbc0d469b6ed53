import { afterAll, afterEach, test } from "bun:test";
import { setFaults } from "../../../src/native/index.ts";
import { withTempDir } from "../../support/index.ts";
import { SsdHost, SsdKit, type SsdKitOptions } from "./ssd-kit.ts";

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

/** Declares tests that get a store on an empty folder, and fail where it leaves anything behind. */
export function useSsdKit(): (
  name: string,
  options: KitOptions,
  run: (test: KitTest) => Promise<void>,
) => void {
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
        const kit = await open({ ...options, dir });
        let last = kit;
        const faults = (plan: string) => setFaults(host.native, plan);
        const reopen = async (own: KitOptions = {}) => {
          await last.close();
          last = await open({ ...options, dir, ...own });
          return last;
        };
        await run({ host, kit, dir, faults, reopen });
        faults("");
        await last.expectNothingLeft();
      }),
    );
}
