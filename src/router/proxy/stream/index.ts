export { EventCutter } from "./event-cutter.ts";
export { HiddenUsage, usageMember } from "./hidden-usage.ts";
export { OutputCount } from "./output-count.ts";
export { OutputWatch } from "./output-watch.ts";
export { clientHeaders, isEventStream, passOn } from "./pass-on.ts";
export { Relay, type RelayOptions } from "./relay.ts";
