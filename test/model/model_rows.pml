/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches of normal where ranks may be left out (plugins/normal/normal.h): two words of each rank, the record and
 * done; rows that are stored in memory of others at places that follow from the records that count; and the agreement
 * of model_mask.pml on both words.
 *
 * One step of a rank is one word or the rows to one other rank, one ballot read, a plan, or one operation ended. In
 * place of places stands what they follow from: whose records count. Rows that are stored by two plans are at places
 * that may overlap, and rows that come when the operation has ended at the receiver damage what its user has, or a
 * later operation.
 *
 * Sizes, by -D: RANKS is 3; OPS, SLOTS (operations in flight at once), DEATHS (at most so many ranks die).
 * Choices:
 *   SLOW     one rank may be suspected although it lives, and goes on with what it was at
 *   DEFECT_* a deliberate defect: protocols.sh has the list
 */
#define RANKS 3
#ifndef OPS
#define OPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define ALL_RANKS ((1 << RANKS) - 1)
#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)

#define IDLE 0  /* looks at ballots, and at what it may do */
#define TELL 1  /* its record of its last operation goes out */
#define LOOK 2  /* it has said that it stores, and looks whether it is out */
#define STORE 3 /* its rows go out */
#define DONE 4  /* and then its done */

byte phase[RANKS], at[RANKS], sent[RANKS]; /* of which operation, to which ranks so far */
byte storing[RANKS];                       /* that operation plus 1, for all to see; 0: none */
byte records[RANKS * RANKS];               /* [d][s]: operations of which s's record is at d */
byte dones[RANKS * RANKS];                 /* [d][s]: likewise its done */
byte begun[RANKS], planned[RANKS], ended[RANKS]; /* how many; of which operations */
byte plan[RANKS * OPS];                    /* [r][o]: whose records count, as r knows */
byte with[RANKS * OPS];                    /* ranks whose rows are in the result */

/* A ballot: whom the rank suspects, and of which operations each word of these is at some rank. */
byte suspects[RANKS];
byte first[RANKS * RANKS], last[RANKS * RANKS];

byte decided[RANKS];       /* suspects, as far as they are agreed on */
byte asked[RANKS];         /* ranks whose ballot was found to be the same since ours changed last */
byte dead, out;            /* out: ranks that were told that they are */
byte slow = RANKS;

#define RECORDS(d, s) records[(d) * RANKS + (s)]
#define DONES(d, s) dones[(d) * RANKS + (s)]
#define FIRST(r, z) first[(r) * RANKS + (z)]
#define LAST(r, z) last[(r) * RANKS + (z)]
#define PLAN(r, o) plan[(r) * OPS + (o)]
#define WITH(r, o) with[(r) * OPS + (o)]
#define IS_OPEN(r) (suspects[r] != decided[r])
#define GONE(r) (HAS(dead, r) || HAS(out, r))
#define TURN(r) (!GONE(r) && phase[r] == IDLE)
#define MAY_BEGIN(r) (begun[r] < OPS && (begun[r] < SLOTS || HAS(ended[r], begun[r] - SLOTS)))

inline suspect(r_, z_)
{
    suspects[r_] = suspects[r_] | BIT(z_);
    FIRST(r_, z_) = FIRST(r_, z_) | (RECORDS(r_, z_) & (BIT(begun[r_]) - 1));
    LAST(r_, z_) = LAST(r_, z_) | (DONES(r_, z_) & (BIT(begun[r_]) - 1))
}

/* All that q says is said here, too, from now on. */
inline adopt(r_, q_)
{
    z = 0;
    do
    :: z < RANKS ->
        if
        :: HAS(suspects[q_], z) ->
            if
            :: !HAS(suspects[r_], z) -> suspect(r_, z)
            :: else -> skip
            fi;
#ifndef DEFECT_FIRST
            FIRST(r_, z) = FIRST(r_, z) | FIRST(q_, z);
#endif
            LAST(r_, z) = LAST(r_, z) | LAST(q_, z)
        :: else -> skip
        fi;
        z++
    :: else -> break
    od
}

#ifdef DEFECT_FIRST
#define SAME_FIRST(r, q, z) true
#define MORE_FIRST(r, q, z) false
#else
#define SAME_FIRST(r, q, z) (FIRST(r, z) == FIRST(q, z))
#define MORE_FIRST(r, q, z) ((FIRST(q, z) & ~FIRST(r, z)) != 0)
#endif
#define SAME_OF(r, q, z) (!HAS(suspects[r], z) || (LAST(r, z) == LAST(q, z) && SAME_FIRST(r, q, z)))
#define SAME(r, q) (suspects[r] == suspects[q] && SAME_OF(r, q, 0) && SAME_OF(r, q, 1) && SAME_OF(r, q, 2))
#define MORE_OF(r, q, z) (HAS(suspects[q], z) && ((LAST(q, z) & ~LAST(r, z)) != 0 || MORE_FIRST(r, q, z)))
#define MORE(r, q) ((suspects[q] & ~suspects[r]) != 0 || MORE_OF(r, q, 0) || MORE_OF(r, q, 1) || MORE_OF(r, q, 2))

#define IS_THERE(words, o, s) (HAS(words[s], o) || HAS(words[RANKS + s], o) || HAS(words[2 * RANKS + s], o))

/* Of a rank that is decided to be out: what it brings counts, what it said counts. */
#define IS_WITHOUT(r, o, z) (HAS(decided[r], z) && !HAS(LAST(r, z), o))
#define IS_SILENT(r, o, z) (IS_WITHOUT(r, o, z) && !HAS(FIRST(r, z), o))

/* A rank that this operation is without and that may still store rows of it. */
#ifdef DEFECT_QUIET
#define IS_NOISY(r, o, z) false
#else
#define IS_NOISY(r, o, z) (IS_WITHOUT(r, o, z) && storing[z] == (o) + 1 && !HAS(dead, z))
#endif
#define IS_QUIET(r, o) (!IS_NOISY(r, o, 0) && !IS_NOISY(r, o, 1) && !IS_NOISY(r, o, 2))

#define HAS_RECORD(r, o, z) (HAS(RECORDS(r, z), o) || IS_WITHOUT(r, o, z))
#define MAY_PLAN(r, o) (HAS_RECORD(r, o, 0) && HAS_RECORD(r, o, 1) && HAS_RECORD(r, o, 2) && IS_QUIET(r, o))
#define HAS_DONE(r, o, z) (HAS(DONES(r, z), o) || HAS(decided[r], z))
#define MAY_END(r, o) (HAS_DONE(r, o, 0) && HAS_DONE(r, o, 1) && HAS_DONE(r, o, 2) && IS_QUIET(r, o))

inline make_plan(r_, o_)
{
    z = 0;
    do
    :: z < RANKS ->
        if
        :: IS_SILENT(r_, o_, z) -> skip
        :: else ->
            assert(IS_THERE(records, o_, z)); /* it is taken from whoever has it */
            PLAN(r_, o_) = PLAN(r_, o_) | BIT(z)
        fi;
        z++
    :: else -> break
    od;
    z = 0;
    planned[r_] = planned[r_] | BIT(o_);
    phase[r_] = LOOK;
    at[r_] = o_;
    sent[r_] = BIT(r_)
}

#ifdef DEFECT_DIGEST
#define HAS_SAME_DIGEST(z, r, o) true
#else
#define HAS_SAME_DIGEST(z, r, o) (PLAN(z, o) == PLAN(r, o))
#endif

/* Rows of a rank that is gone may lie elsewhere than this one thinks: its digest says so. Of others it is an error. */
inline end_operation(r_, o_)
{
    z = 0;
    do
    :: z < RANKS ->
        if
        :: IS_WITHOUT(r_, o_, z) -> skip
        :: else ->
            assert(IS_THERE(dones, o_, z));
            if
            :: HAS_SAME_DIGEST(z, r_, o_) ->
                assert(PLAN(z, o_) == PLAN(r_, o_));
                WITH(r_, o_) = WITH(r_, o_) | BIT(z)
            :: else -> assert(HAS(decided[r_], z))
            fi
        fi;
        z++
    :: else -> break
    od;
    z = 0;
    ended[r_] = ended[r_] | BIT(o_)
}

/* To one rank after the other, as the kit does it: the one behind r is the first. */
#define NEXT(r) (HAS(sent[r], ((r) + 1) % RANKS) -> ((r) + 2) % RANKS : ((r) + 1) % RANKS)
#define IS_SENDING(r, p) (!HAS(dead, r) && phase[r] == p)
#define SENT(r, d, next) \
    sent[r] = sent[r] | BIT(d); \
    phase[r] = (sent[r] == ALL_RANKS -> next : phase[r]); \
    d = 0

#define OPERATION(o) \
    :: d_step { TURN(r) && !IS_OPEN(r) && begun[r] > o && !HAS(planned[r], o) && MAY_PLAN(r, o) -> \
        make_plan(r, o); SAY_STORING(r, o) } \
    :: d_step { TURN(r) && !IS_OPEN(r) && HAS(planned[r], o) && !HAS(ended[r], o) && MAY_END(r, o) -> \
        end_operation(r, o) }

/* The word, then the look. */
#ifdef DEFECT_LOOK
#define SAY_STORING(r, o) skip
#else
#define SAY_STORING(r, o) storing[r] = o + 1
#endif

#define LISTENS(r, q) (TURN(r) && !HAS(suspects[r], q))
#define LOOK_AT(i) \
    :: d_step { LISTENS(r, i) && MORE(r, i) -> \
        adopt(r, i); \
        asked[r] = 0; \
        out = out | (suspects[r] & BIT(r)); /* it reads that it is out itself */ \
        z = 0 } \
    :: d_step { LISTENS(r, i) && IS_OPEN(r) && !HAS(asked[r], i) && SAME(r, i) -> asked[r] = asked[r] | BIT(i) }

#define DOUBT(i) \
    :: d_step { LISTENS(r, i) && r != i && ended[r] != BIT(OPS) - 1 && (HAS(dead, i) || slow == i) -> \
        suspect(r, i); \
        asked[r] = 0 }

#define HEARD_ALL(r) ((asked[r] | suspects[r]) == ALL_RANKS)

proctype rank(byte r)
{
    byte z;
end:
    do
    :: d_step { TURN(r) && !IS_OPEN(r) && MAY_BEGIN(r) ->
        RECORDS(r, r) = RECORDS(r, r) | BIT(begun[r]);
        phase[r] = TELL;
        at[r] = begun[r];
        sent[r] = BIT(r);
        begun[r] = begun[r] + 1 }
    :: d_step { IS_SENDING(r, TELL) ->
        z = NEXT(r);
        RECORDS(z, r) = RECORDS(z, r) | BIT(at[r]);
        SENT(r, z, IDLE) }
    :: d_step { IS_SENDING(r, STORE) ->
        z = NEXT(r);
        assert(GONE(z) || !HAS(ended[z], at[r]));
        assert(GONE(z) || !HAS(planned[z], at[r]) || PLAN(z, at[r]) == PLAN(r, at[r]));
        SENT(r, z, DONE);
        if
        :: phase[r] == DONE ->
            storing[r] = 0;
            DONES(r, r) = DONES(r, r) | BIT(at[r]);
            sent[r] = BIT(r)
        :: else -> skip
        fi }
    :: d_step { IS_SENDING(r, DONE) ->
        z = NEXT(r);
        DONES(z, r) = DONES(z, r) | BIT(at[r]);
        SENT(r, z, IDLE) }
    :: d_step { !HAS(dead, r) && phase[r] == LOOK ->
        if
        :: HAS(out, r) -> storing[r] = 0; phase[r] = IDLE
        :: else -> phase[r] = STORE
        fi }
#ifdef DEFECT_LOOK
    :: d_step { !HAS(dead, r) && phase[r] == STORE && sent[r] == BIT(r) && storing[r] == 0 -> storing[r] = at[r] + 1 }
#endif
    OPERATION(0)
#if OPS > 1
    OPERATION(1)
#endif
#if OPS > 2
    OPERATION(2)
#endif
    DOUBT(0)
    DOUBT(1)
    DOUBT(2)
    LOOK_AT(0)
    LOOK_AT(1)
    LOOK_AT(2)
    /* decided: who is out is told so first, and a rank that was told itself decides nothing */
    :: d_step { TURN(r) && IS_OPEN(r) && HEARD_ALL(r) ->
        out = out | (suspects[r] & ~dead);
        decided[r] = suspects[r] }
    od
}

/* At any step, as long as one rank is left. */
proctype death()
{
    byte deaths = 0;
end:
    do
    :: d_step { deaths < DEATHS && dead == 0 -> dead = dead | 1; deaths++ }
    :: d_step { deaths < DEATHS && !HAS(dead, 1) -> dead = dead | 2; deaths++ }
    :: d_step { deaths < DEATHS && !HAS(dead, 2) -> dead = dead | 4; deaths++ }
#ifdef SLOW
    :: d_step { slow == RANKS -> slow = 0 }
    :: d_step { slow == RANKS -> slow = 1 }
#endif
    od
}

#define AGREE(a, b, o) (GONE(a) || GONE(b) || WITH(a, o) == WITH(b, o))
#define FINISHED(r) (GONE(r) || ended[r] == BIT(OPS) - 1)

/* Nothing can happen any more: survivors have ended all operations, each with the same ranks. */
active proctype monitor()
{
    byte o;
    timeout ->
    d_step {
        assert(FINISHED(0) && FINISHED(1) && FINISHED(2));
        for (o : 0 .. OPS - 1) {
            assert(AGREE(0, 1, o) && AGREE(0, 2, o) && AGREE(1, 2, o))
        }
    }
}

init {
    atomic {
        byte r = 0;
        do
        :: r < RANKS -> run rank(r); r++
        :: else -> break
        od;
        run death()
    }
}
