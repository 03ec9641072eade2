// A worker: trains one policy for each of its seeds, an iteration each in turn, so that the page never waits.
// Several may share a run: the first of them leads and speaks, the others do what it does.

import { adapterName } from "./adapter.js";
import { RATE } from "./player.js";
import { plain, restored } from "./saved.js";
import { trainer } from "./trainer.js";

/** Milliseconds between two policies of a seed that are sent. */
const EVERY = 300;
/** And between two times that records are sent: each stops the page, and the page stops who waits for its core. */
const TELL = 100;
/** And between two times that a run is saved, from which it could go on. */
const SAVE_EVERY = 4000;
/** And between two times that messages are let in. */
const TURN = 50;
/** And between two pictures of the games on the device, where that is a GPU, and where it is software. */
const FRAME = 15;
const SPARING = 90;

/** What all that share a run do next. */
const [STOP, ITERATE, SAVE] = [0, 1, 2];

const runs = [];
let paused = false;
let looping = false;
let wall;

/** A training does one thing at a time. */
let last = Promise.resolve();
function inTurn(task) {
  const done = last.then(task);
  last = done.catch(() => {});
  return done;
}

/** Lets messages in between two iterations, now and then; a timer would cost milliseconds each time. */
const turn = () => new Promise((done) => {
  if (performance.now() - turned < TURN) return done();
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); turned = performance.now(); done(); };
  port2.postMessage(0);
});
let turned = 0;

async function start({ wanted, gpu, place, paused: waits }) {
  paused = waits;
  try {
    const { default: init, Training, Saved, Place } = await trainer("train");
    const { memory } = await init();
    const mine = () => place && new Place(place.memory, place.rank, place.size);
    for (const { seed, iterations, text, saved, games } of wanted) {
      const training = saved ? await Training.resume(restored(Saved, saved), gpu, games, mine()) : await Training.create(text, gpu, games, mine());
      if (!training) return close(); // the others are enough
      runs.push({ seed, iterations, training, iteration: saved?.iteration ?? 0, records: [], told: -Infinity, sent: -Infinity, saved: -Infinity });
      if (training.rank() > 0) continue;
      const about = JSON.parse(training.about());
      runs.at(-1).software = about.software;
      if (about.api === "WebGPU") about.device = await adapterName();
      postMessage({ is: "about", seed, about });
      await sendPolicy(runs.at(-1));
    }
    if (leads()) postMessage({ is: "memory", bytes: memory.buffer.byteLength });
  } catch (error) {
    return postMessage({ is: "refused", why: String(error?.message ?? error) });
  }
  await goOn();
}

const leads = () => runs.every(({ training }) => training.rank() === 0);
const goOn = () => (leads() ? train() : follow());

/** Does what the leader of the run does, until that stops or fails. */
async function follow() {
  const [{ training }] = runs;
  try {
    for (;;) {
      const what = training.next(STOP);
      if (what === STOP) return;
      if (what === ITERATE) await training.iterate();
      else (await training.save()).free();
    }
  } catch {
    // What went wrong is the leader's to say: it is the same there.
  }
}

/** Sends the records of a run that the page has not had yet. */
function tell(run) {
  if (run.records.length === 0) return;
  postMessage({ is: "records", seed: run.seed, records: run.records });
  run.records = [];
  run.told = performance.now();
}

/** What a run can go on from, as plain data that the browser's storage keeps. */
async function save(run) {
  run.training.next(SAVE);
  const saved = plain(await run.training.save());
  run.saved = performance.now();
  run.stored = run.iteration;
  tell(run);
  postMessage({ is: "saved", seed: run.seed, saved });
}

async function sendPolicy(run) {
  const file = await run.training.policy();
  run.sent = performance.now();
  run.known = run.iteration;
  tell(run);
  postMessage({ is: "policy", seed: run.seed, iteration: run.iteration, file }, [file.buffer]);
}

async function iterate(run) {
  try {
    run.training.next(ITERATE);
    const record = JSON.parse(await run.training.iterate());
    run.iteration = record.iteration;
    run.records.push(record);
    if (performance.now() - run.told > TELL) tell(run);
    if (performance.now() - run.sent > EVERY) await sendPolicy(run);
    if (run.iteration < run.iterations && performance.now() - run.saved > SAVE_EVERY) await save(run);
  } catch (error) {
    run.failed = true;
    tell(run);
    postMessage({ is: "failed", seed: run.seed, iteration: run.iteration, why: String(error?.message ?? error) });
  }
}

const unfinished = () => runs.filter((run) => !run.failed && run.iteration < run.iterations);

async function train() {
  if (looping) return;
  looping = true;
  while (!paused && unfinished().length > 0) {
    for (const run of unfinished()) {
      await inTurn(() => iterate(run));
      await turn();
      if (paused) break;
    }
  }
  for (const run of runs) if (!run.failed && run.known < run.iteration) await inTurn(() => sendPolicy(run));
  for (const run of unfinished()) if (run.stored !== run.iteration && run.iteration > 0) await inTurn(() => save(run));
  for (const run of runs) if (!run.failed) run.training.next(STOP);
  looping = false;
  postMessage({ is: unfinished().length > 0 ? "paused" : "done" });
}

/** Draws games on the device from its own memory, until there is another such wall or none. */
async function showWall({ canvas, games, calm }) {
  const [{ training, software }] = runs;
  const mine = (wall = { stepped: -Infinity });
  try {
    await inTurn(() => training.show(canvas, games));
    while (wall === mine) {
      await inTurn(() => picture(training, mine, calm));
      await new Promise((done) => setTimeout(done, software ? SPARING : FRAME));
      await new Promise((done) => requestAnimationFrame(done)); // none while the tab is hidden
    }
  } catch (error) {
    if (wall !== mine) return;
    wall = undefined;
    postMessage({ is: "no wall", why: String(error?.message ?? error) });
  }
}

/** A picture of the wall: a step when it is due, and its motion. */
function picture(training, shown, calm) {
  const now = performance.now();
  if ((now - shown.stepped) * RATE >= 1000) {
    training.step();
    shown.stepped = now;
  }
  training.draw(calm ? 1 : ((now - shown.stepped) * RATE) / 1000);
}

onmessage = ({ data }) => {
  if (data.do === "start") start(data);
  if (data.do === "pause") paused = true;
  if (data.do === "go on") {
    paused = false;
    goOn();
  }
  if (data.do === "wall") showWall(data);
  if (data.do === "no wall") wall = undefined;
};
