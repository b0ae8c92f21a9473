"""The sentences of `probe.data.coreference`, as frames. One frame is one cluster.

How to read a frame:

    {a} {b}      the two candidates, in the order in which they are mentioned
    [...]        filler that only the "far" items have; it names nobody and nothing a pronoun could mean
    <he|she>     the word that decides; a minimal pair has one item with each alternative
    {pronoun}    the pronoun of a cue frame, where another word decides

Every frame must make sense with either candidate as the antecedent, and with both orders of mention where the
order is free. A number frame must also keep "they" from meaning both candidates together, so it compares them
("twice as much", "won", "first"), and nothing in it but the deciding word may change with number.

No candidate is the first word: many models have no token before the first, and rest idle attention on it.
"""

from __future__ import annotations

from typing import NamedTuple

# Each of these is one token for BERT's word pieces and for SmolLM2, at the start of a text and inside it.
MALE = ("John", "James", "David", "Michael", "Peter", "Paul", "Thomas", "Robert", "William", "Henry")
FEMALE = ("Mary", "Sarah", "Anna", "Alice", "Jane", "Maria", "Elizabeth", "Emily", "Lily", "Marie")

GENDER = (
    "Once {a} met {b} at the station[ late on a cold and rainy Monday evening], and <he|she> described the trip.",
    "Once {a} phoned {b}[ just after eight o'clock on a Sunday morning] because <he|she> felt lonely.",
    "Last May {a} played tennis against {b}[ for nearly three hours in the summer heat], and <he|she> won the match.",
    "Last year {a} lent {b} some money[ for the second time in less than a year]. <He|She> never mentioned it again.",
    "Yesterday {a} sat behind {b} on the bus[ for the whole of that slow and bumpy ride] until <he|she> got off.",
    "Later {a} told {b}[ very quietly just before the end of the day] that a letter had come for <him|her>.",
    "Last night {a} was cooking dinner with {b}[ on a quiet and rather dark winter evening] when <his|her> phone rang.",
    "Yesterday {a} helped {b} paint the kitchen[ from noon until it was nearly dark], and <his|her> hands got dirty.",
    "Last year {a} sold {b} an old car[ about three weeks before the end of summer], and then <he|she> moved abroad.",
    "At dinner {a} argued with {b} about politics[, louder and louder for over an hour,] until <he|she> walked out.",
    "Once {a} danced with {b} at the wedding[ until after two in the morning], although <he|she> had a sore knee.",
    "Then {a} followed {b} up the hill[ in the last light of a winter day], but <he|she> soon needed a rest.",
    "Back then {a} wrote to {b} every week[, usually at night and at great length,] while <he|she> lived in Canada.",
    "Once {a} had lunch with {b}[ shortly after noon on the first of April], and <he|she> paid the bill.",
    "Once {a} saw {b} across the street[ in the middle of a busy Friday afternoon], and <he|she> waved at once.",
    "Once {a} sat opposite {b} in the library[ every day of that stormy week]. <He|She> was reading a long novel.",
    "Last night {a} waited outside with {b}[ in the bitter cold for almost an hour] until a taxi came for <him|her>.",
    "At first {a} shared an office with {b}[ for six busy and mostly happy years]. Then <he|she> found a better job.",
    "Last night {a} sang a duet with {b}[ at the very end of a long evening], and <his|her> voice filled the hall.",
    "Once {a} walked right past {b}[ at about noon on a bright spring day], but <he|she> noticed nothing.",
    "Last month {a} promised {b} an answer[ by the end of that long and difficult week], but <he|she> forgot about it.",
    "Once {a} drove {b} to the airport[ in heavy traffic early on a Tuesday morning], and <he|she> talked all the way.",
)


class Number(NamedTuple):
    """A frame whose pronoun agrees with one candidate in number.

    nouns: "a/b a/b a/b" in the singular; the plural adds -s.
    """

    frame: str
    nouns: str


NUMBER = (
    Number(
        "The {a} raced the {b}[ again and again on a warm and windless morning], and <it|they> won every time.",
        "horse/camel dog/goat donkey/pig",
    ),
    Number(
        "The {a} stood beside the {b}[ for nearly three months during that cold winter], "
        "but <it|they> cost twice as much.",
        "lamp/clock chair/mirror vase/statue",
    ),
    Number(
        "The {a} growled at the {b}[ again and again for almost half an hour], but <it|they> ran away first.",
        "dog/bear lion/tiger panther/leopard",
    ),
    Number(
        "The {a} played chess against the {b}[ from early afternoon until long after midnight], "
        "and <he|they> won every game.",
        "boy/priest prince/monk waiter/butler",
    ),
    Number(
        "The {a} met the {b} outside[ on the last cold Sunday of that month], "
        "but <she|they> had arrived an hour earlier.",
        "nun/girl aunt/niece mother/daughter",
    ),
    Number(
        "The {a} collided with the {b}[ shortly after three o'clock on a foggy morning], "
        "and <it|they> suffered much greater damage.",
        "truck/car taxi/bike tractor/van",
    ),
    Number(
        "The {a} sailed alongside the {b}[ through eleven days of rough and stormy weather], "
        "but <it|they> reached land first.",
        "ship/boat yacht/tanker steamer/barge",
    ),
    Number(
        "The {a} sang with the {b}[ in the early morning all through the spring], but <it|they> sang much louder.",
        "parrot/robin blackbird/sparrow cuckoo/nightingale",
    ),
    Number(
        "The {a} ate next to the {b}[ quite calmly every evening for over a year], and <it|they> ate twice as much.",
        "cow/horse duck/hen rabbit/turtle",
    ),
    Number(
        "The {a} worked beside the {b}[ six days a week for almost ten years], but <he|they> earned twice as much.",
        "waiter/butler uncle/nephew bellboy/steward",
    ),
    Number(
        "The {a} sat opposite the {b}[ at noon on the second day of May], and I served <him|them> first.",
        "king/prince priest/monk boy/wizard",
    ),
    Number(
        "The {a} circled above the {b}[ hour after hour on that bright and windy day], "
        "and <its|their> cries sounded much louder.",
        "eagle/crow hawk/gull falcon/raven",
    ),
    Number(
        "The {a} stood near the {b}[ in the same dry garden for many years], but <it|they> grew twice as tall.",
        "oak/pine maple/palm fern/rose",
    ),
    Number(
        "The {a} swam ahead of the {b}[ all the way across that cold and quiet lake], but <it|they> got tired first.",
        "swan/duck seal/otter frog/turtle",
    ),
    Number(
        "I compared the {a} with the {b}[ very carefully for the third time this week], and I preferred <it|them>.",
        "poem/song rose/tulip painting/photo",
    ),
    Number(
        "The {a} hung beside the {b}[ all through the long summer of last year], but <it|they> looked much older.",
        "coat/shirt flag/banner mask/shield",
    ),
    Number(
        "The {a} lay next to the {b}[ in plain view for nearly an hour], and I picked <it|them> up first.",
        "key/coin pen/book spoon/fork",
    ),
    Number(
        "The {a} stared at the {b} in silence[ for almost a minute without even blinking once]. "
        "<She|They> spoke first.",
        "girl/nun queen/maid grandmother/schoolgirl",
    ),
)


class Cue(NamedTuple):
    """A frame with two candidates that the pronoun fits alike.

    The first cue word makes {a} right, the second {b}.
    nouns: "a/b a/b ..."; every pair is written with every pronoun, and pairs times pronouns is always six.
    """

    frame: str
    nouns: str
    pronouns: str


CUE = (
    Cue(
        "The {a} didn't jump onto the {b}[, even after looking up a dozen times,] "
        "because {pronoun} was too <tired|high>.",
        "cat/table kitten/shelf dog/wall goat/roof monkey/branch puppy/sofa",
        "it",
    ),
    Cue(
        "The {a} hired the {b}[ only a week before the end of spring] because {pronoun} needed <help|work>.",
        "lawyer/assistant baker/student builder/painter",
        "he she",
    ),
    Cue(
        "The {a} could not cut the {b}[ even after a full hour of trying] because {pronoun} was too <dull|thick>.",
        "knife/rope saw/branch axe/log blade/cable sword/chain razor/cloth",
        "it",
    ),
    Cue(
        "The {a} lent the {b} some money[ on the first day of the new year] because {pronoun} was so <rich|poor>.",
        "doctor/painter banker/student lawyer/poet",
        "he she",
    ),
    Cue(
        "The {a} could not pass under the {b}[ on the way home late that evening] "
        "because {pronoun} was too <tall|low>.",
        "truck/bridge bus/arch crane/cable van/barrier ship/rope wagon/branch",
        "it",
    ),
    Cue(
        "The {a} apologized to the {b}[ very politely and in a rather low voice] "
        "because {pronoun} had been <rude|offended>.",
        "clerk/customer driver/guest singer/writer",
        "he she",
    ),
    Cue(
        "The {a} did not eat the {b}[ at any time during that whole long day] because {pronoun} was too <full|rotten>.",
        "pig/apple monkey/banana bear/fish dog/egg goat/cabbage horse/carrot",
        "it",
    ),
    Cue(
        "The {a} paid the {b}[ without delay in the middle of the afternoon] "
        "because {pronoun} had <ordered|delivered> the flowers.",
        "manager/driver teacher/courier singer/messenger",
        "he she",
    ),
    Cue(
        "The {a} broke the {b}[ in a fraction of a second that night] because {pronoun} was so <heavy|fragile>.",
        "stone/window hammer/vase brick/mirror rock/plate ladder/lamp wrench/bowl",
        "it",
    ),
    Cue(
        "The {a} punished the {b}[ three times in the course of one week] because {pronoun} was so <strict|lazy>.",
        "teacher/pupil coach/player captain/sailor",
        "he she",
    ),
    Cue(
        "The {a} escaped from the {b}[ once again in the grey light before dawn] "
        "because {pronoun} was so <quick|slow>.",
        "rabbit/fox mouse/owl deer/lion zebra/tiger lizard/hawk squirrel/dog",
        "it",
    ),
    Cue(
        "The {a} asked the {b} for directions[ at around six o'clock on a foggy morning] "
        "because {pronoun} was <lost|local>.",
        "tourist/farmer hiker/baker driver/student",
        "he she",
    ),
    Cue(
        "The {a} could not hide behind the {b}[ for more than a second or two] because {pronoun} was too <big|small>.",
        "bear/bush cow/bench elephant/tree horse/barrel lion/rock camel/chair",
        "it",
    ),
    Cue(
        "The {a} ran away from the {b}[ as fast as possible and without a sound] because {pronoun} was <scared|armed>.",
        "tourist/robber clerk/thief witness/killer",
        "he she",
    ),
    Cue(
        "The {a} could not hold the {b}[ for more than two or three short seconds] "
        "because {pronoun} was too <weak|heavy>.",
        "rope/piano shelf/statue hook/mirror chain/engine branch/swing string/lantern",
        "it",
    ),
    Cue(
        "The {a} comforted the {b}[ softly and patiently for most of the night] "
        "because {pronoun} was so <caring|upset>.",
        "nurse/patient doctor/child teacher/student",
        "he she",
    ),
    Cue(
        "The {a} did not quite cover the {b}[, even at the second or third attempt,] "
        "because {pronoun} was too <short|wide>.",
        "blanket/bed curtain/window sheet/mattress cloth/table rug/floor towel/bench",
        "it",
    ),
    Cue(
        "The {a} envied the {b}[ deeply and secretly for a great many years] because {pronoun} was so <poor|rich>.",
        "farmer/banker servant/merchant tailor/lawyer",
        "he she",
    ),
    Cue(
        "The {a} could not light the {b}[ for a single moment of that night] because {pronoun} was too <weak|large>.",
        "candle/cave lamp/hall torch/tunnel lantern/barn bulb/cellar match/room",
        "it",
    ),
    Cue(
        "The {a} carried the {b} home[ slowly but safely on a cold December night] "
        "because {pronoun} was so <strong|weak>.",
        "guide/hiker coach/runner farmer/tourist",
        "he she",
    ),
)
