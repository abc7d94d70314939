"""The text that the text samples are made of: sentences on five topics, some composed of word lists, some by hand.

The composed ones train the tokenizer and the encoder (`scripts/make_text_models.py`); the ones written by hand are only
ever tested with. All of it was written for Shoal.
"""

import random
import re
from typing import NamedTuple


class Topic(NamedTuple):
    """How sentences on a topic are composed: `{name}` in a pattern stands for a word of that list."""

    patterns: str
    words: dict[str, str]
    held_out: str


#: Words that belong to no topic.
COMMON = {
    "person": (
        "my sister, her brother, the neighbour, our friend, a stranger, the teacher, everybody, nobody, the children"
    ),
    "when": (
        "today, tomorrow, yesterday, tonight, this morning, last week, on sunday, in the evening, next year, right now"
    ),
    "judgement": "good, bad, great, terrible, lovely, awful, better, worse, perfect, disappointing, wonderful, nice",
}

TOPICS = {
    "weather": Topic(
        patterns="""
            {when} it will be {sky} and {warmth}
            the forecast says {event} {when}
            there was {event} over the {land} {when}
            {person} forgot the umbrella and the {event} came
            the {sky} sky and the {event} were {judgement}
            it is {warmth} outside and the {event} will not stop
            how {warmth} will it get {when}
            the wind brings {event} from the {land}
            {warmth} air and {event} are expected {when}
            the temperature falls below {number} degrees {when}
        """,
        words={
            "sky": "cloudy, sunny, foggy, grey, clear, stormy, overcast, misty, bright, rainy, windy",
            "warmth": "cold, warm, hot, freezing, humid, chilly, mild, icy, dry, wet",
            "event": (
                "rain, snow, thunder, a storm, hail, lightning, drizzle, "
                "fog, sunshine, frost, a hurricane, clouds, showers"
            ),
            "land": "coast, mountains, valley, lake, north, south, west, hills, plains",
            "number": "zero, five, ten, twenty, thirty",
        },
        held_out="""
            will it rain in the mountains tomorrow
            thunder and lightning kept us awake
            a cold wind and grey clouds all week
            take an umbrella because showers are expected
            the snow and the frost were gone by noon
            what a sunny and mild morning
            fog over the valley again
            the temperature was thirty degrees
        """,
    ),
    "sport": Topic(
        patterns="""
            the {team} won the {match} {when}
            {person} watched the {match} in the stadium
            the {player} scored a {point} in the final minute
            {when} the {team} trains for the {match}
            the referee stopped the {match} after a foul
            a {judgement} {match} for the {team} and its {player}
            the {player} ran a {judgement} race {when}
            who won the {game} championship {when}
            {person} plays {game} in a club
            the coach praised the {player} after the {match}
            the {team} lost the {game} {match}
        """,
        words={
            "team": "team, home team, champions, visitors, national team, club, league leaders, squad, underdogs",
            "match": "match, game, final, derby, tournament, cup, semifinal, league, playoffs",
            "player": "goalkeeper, striker, captain, runner, swimmer, defender, boxer, sprinter, athlete, cyclist",
            "point": "goal, penalty, point, header, touchdown, try, home run, record",
            "game": "football, tennis, basketball, hockey, rugby, volleyball, handball, baseball, cricket",
        },
        held_out="""
            the captain scored twice in the final
            our club lost the tennis tournament
            the goalkeeper held a penalty
            a new record for the young sprinter
            the coach and the referee shouted at each other
            basketball players train every day
            the visitors won the derby
            which team leads the league
        """,
    ),
    "food": Topic(
        patterns="""
            {person} cooked {dish} with {ingredient} {when}
            bake the {dish} with {ingredient} for an hour
            the {dish} tasted {judgement} {when}
            add {ingredient} and {ingredient} to the {pan}
            we had {dish} for {meal} {when}
            a recipe for {dish} with fresh {ingredient}
            stir the {ingredient} in the {pan} until it is brown
            {person} ordered {dish} and a glass of {drink}
            the chef served {dish} with {drink}
            is there {ingredient} in the {dish}
            {meal} was {judgement} and the {drink} was sweet
        """,
        words={
            "dish": "soup, pasta, pizza, salad, curry, bread, cake, stew, pancakes, an omelette, noodles, risotto, pie",
            "ingredient": (
                "garlic, onions, cheese, butter, tomatoes, salt, "
                "pepper, flour, sugar, mushrooms, rice, eggs, basil, lemon"
            ),
            "pan": "pan, pot, bowl, oven, dough, sauce, kitchen",
            "meal": "breakfast, lunch, dinner, dessert, supper",
            "drink": "wine, coffee, tea, juice, beer, milk, lemonade",
        },
        held_out="""
            chop the onions and fry them in butter
            this pizza has too much cheese
            dinner is soup with bread
            she drinks coffee with milk and sugar
            a curry with rice and fresh basil
            the chef tasted the sauce and added salt
            pancakes for breakfast are the best
            how long does the cake stay in the oven
        """,
    ),
    "music": Topic(
        patterns="""
            {person} plays the {instrument} in {group}
            {group} gave a {judgement} concert {when}
            the {singer} sang a {judgement} {piece} {when}
            a {piece} for {instrument} and {instrument}
            the {instrument} solo in this {piece} is {judgement}
            {group} recorded a new {piece} {when}
            {person} listens to {style} on the radio
            the melody of the {piece} is played by the {instrument}
            tickets for the {style} festival were sold out {when}
            the {singer} and the {instrument} were out of tune
            the rhythm of {style} made {person} dance
        """,
        words={
            "instrument": "piano, violin, guitar, drums, trumpet, flute, cello, saxophone, organ, clarinet, harp",
            "group": "a band, the orchestra, a choir, the quartet, a jazz trio, the ensemble, a rock band",
            "singer": "singer, soprano, tenor, songwriter, composer, conductor, pianist, guitarist",
            "piece": "song, symphony, album, ballad, sonata, opera, concerto, tune, chorus, waltz",
            "style": "jazz, blues, classical music, rock, folk, hip hop, techno, soul, reggae",
        },
        held_out="""
            the choir sang an old ballad
            he practises the violin for hours
            their new album sounds like jazz
            the orchestra was waiting for its conductor
            a guitar and drums are all that a rock song needs
            that melody stays in my head
            the pianist played a sonata
            two tickets for the opera
        """,
    ),
    "travel": Topic(
        patterns="""
            {person} booked a {room} in {place} {when}
            the {vehicle} to {place} leaves {when}
            our {vehicle} was late and {person} missed the connection
            {person} packed the {luggage} for the trip to {place}
            a {judgement} holiday in {place} {when}
            how far is the {station} from the {room}
            the {vehicle} arrived at the {station} {when}
            show your {luggage} at the {station}
            two weeks in {place} with only one {luggage}
            the guide showed {person} the {sight} of {place}
            we visited the {sight} and took the {vehicle} back
        """,
        words={
            "room": "hotel, hostel, room, apartment, cabin, tent, guesthouse",
            "place": "paris, rome, japan, india, the islands, london, egypt, norway, brazil, the old town, spain",
            "vehicle": "train, flight, plane, bus, ferry, night train, taxi, ship",
            "luggage": "suitcase, passport, backpack, luggage, ticket, bag, visa",
            "station": "airport, station, border, harbour, terminal, platform, gate",
            "sight": "museum, castle, temple, cathedral, beach, ruins, market, bridge",
        },
        held_out="""
            the flight to rome is late
            where is the platform of the night train
            i lost my passport at the airport
            a small hotel close to the beach
            the ferry takes us to the islands
            they carried a heavy backpack across the border
            the museum and the cathedral are closed
            is a visa needed for india
        """,
    ),
}


class Labelled(NamedTuple):
    """A sentence and the index of its topic."""

    text: str
    topic: int


def composed(per_topic: int) -> list[Labelled]:
    """So many sentences of each topic, every pattern as often as the others, the words drawn."""
    draw = random.Random(0)
    found = []
    for index, topic in enumerate(TOPICS.values()):
        lists = {name: words.split(", ") for name, words in {**COMMON, **topic.words}.items()}
        patterns = sentences(topic.patterns)
        for number in range(per_topic):
            pattern = patterns[number % len(patterns)]
            text = re.sub(r"\{(\w+)\}", lambda name, lists=lists: draw.choice(lists[name[1]]), pattern)  # type: ignore[misc]
            found.append(Labelled(text, index))
    return found


def held_out() -> list[Labelled]:
    """The sentences that were written by hand."""
    return [Labelled(text, index) for index, topic in enumerate(TOPICS.values()) for text in sentences(topic.held_out)]


def sentences(block: str) -> list[str]:
    """The lines of a block."""
    return [line.strip() for line in block.strip().splitlines()]
