export { EventLog } from "./event-log.ts";
export type { EventPage, HearthEvent, NumberedEvent } from "./events.ts";
